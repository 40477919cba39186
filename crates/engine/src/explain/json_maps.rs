//! Lists that are maps in JSON, in the order of the list.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serializer};

/// Scores by plugin.
pub(super) mod scores {
    use super::{Deserializer, Serializer, read};
    use crate::explain::CowName;

    pub fn serialize<S: Serializer>(
        scores: &[(CowName, i64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(scores.iter().map(|(plugin, score)| (plugin, score)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(CowName, i64)>, D::Error> {
        let pairs = read::<i64, D>(deserializer)?;
        Ok(pairs.into_iter().map(|(plugin, score)| (plugin.into(), score)).collect())
    }
}

/// Details by plugin and name.
pub(super) mod details {
    use loadmaster_framework::DetailValue;
    use serde::{Deserialize, Serialize};

    use super::{Deserializer, Serializer, read};
    use crate::explain::{DetailsByName, DetailsByPlugin};

    struct EncodedDetails<'a>(&'a DetailsByName);

    impl Serialize for EncodedDetails<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
        }
    }

    struct DecodedDetails(DetailsByName);

    impl<'de> Deserialize<'de> for DecodedDetails {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let pairs = read::<DetailValue, D>(deserializer)?;
            Ok(DecodedDetails(pairs.into_iter().map(|(name, it)| (name.into(), it)).collect()))
        }
    }

    pub fn serialize<S: Serializer>(
        details: &DetailsByPlugin,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(details.iter().map(|(plugin, it)| (plugin, EncodedDetails(it))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<DetailsByPlugin, D::Error> {
        let pairs = read::<DecodedDetails, D>(deserializer)?;
        Ok(pairs.into_iter().map(|(plugin, details)| (plugin.into(), details.0)).collect())
    }
}

/// Evictions by node.
pub(super) mod evictions {
    use serde::{Deserialize, Serialize};

    use super::{Deserializer, Serializer, read};
    use crate::explain::PreemptionCandidate;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct EncodedCandidate<'a> {
        victims: &'a [String],
        pdb_violations: usize,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct DecodedCandidate {
        victims: Vec<String>,
        pdb_violations: usize,
    }

    pub fn serialize<S: Serializer>(
        all: &[PreemptionCandidate],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(all.iter().map(
            |PreemptionCandidate { node, victims, n_pdb_violations }| {
                (node, EncodedCandidate { victims, pdb_violations: *n_pdb_violations })
            },
        ))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PreemptionCandidate>, D::Error> {
        let pairs = read::<DecodedCandidate, D>(deserializer)?;
        let each = pairs.into_iter().map(|(node, DecodedCandidate { victims, pdb_violations })| {
            PreemptionCandidate { node, victims, n_pdb_violations: pdb_violations }
        });
        Ok(each.collect())
    }
}

/// A map as the list of its pairs.
fn read<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(String, V)>, D::Error> {
    struct Pairs<V>(PhantomData<V>);
    impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
        type Value = Vec<(String, V)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }
    deserializer.deserialize_map(Pairs(PhantomData))
}
