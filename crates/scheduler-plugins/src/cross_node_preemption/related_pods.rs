//! The pods on other nodes whose eviction can make a node feasible for the preemptor.
//!
//! | related by | in the node's domain of | why |
//! | --- | --- | --- |
//! | a required anti-affinity term of either of the two pods | the term's topology key | the two are kept apart |
//! | a constraint of the preemptor with `whenUnsatisfiable: DoNotSchedule`, which counts the pod | the constraint's topology key | the domain has too many pods |
//! | the preemptor's required affinity, if that matches the preemptor itself | the whole cluster | it may be the first pod of its group if there is no other |
//!
//! The eviction of any other pod on another node changes nothing, or makes the node infeasible. Default constraints of PodTopologySpread's
//! arguments are not considered.

use std::sync::Arc;

use loadmaster_api::{Selector, Str};
use loadmaster_framework::cluster_objects::ClusterObjects;
use loadmaster_framework::preemption::{compare_pod_importance, has_lower_priority};
use loadmaster_framework::template::{AffinityTerm, TemplateId};
use loadmaster_framework::{NodeInfo, NodeRow, PodInfo, PodTemplate, World};
use loadmaster_stdx::{Map, Set, SortCompactly as _};

use super::search::{PotentialVictim, SameEffect};

/// A topology key and its value.
type Domain = (Str, Str);

/// All related pods, for any node.
pub(super) struct RelatedPods {
    /// Those of lower priority, the most important first.
    pods: Vec<RelatedPod>,
    /// Indexes of pods by the domains in which they are related.
    by_domain: Map<Domain, Vec<usize>>,
    /// Indexes of the pods that are related in the whole cluster.
    everywhere: Vec<usize>,
    /// The topology keys of all domains.
    keys: Vec<Str>,
    /// Domains with a pod that is kept apart from the preemptor and cannot be evicted.
    kept_away: Set<Domain>,
    relations: Map<TemplateId, Arc<Relation>>,
    /// A constraint counts pods on some nodes of a domain only.
    excludes_nodes: bool,
}

/// A related pod of lower priority.
pub(super) struct RelatedPod {
    pub pod: Arc<PodInfo>,
    row: NodeRow,
    relation: Arc<Relation>,
    /// The domains of its node by the keys of the relation: first those of terms, then those of constraints.
    domains: Box<[Option<Str>]>,
}

/// How pods with one template are related to the preemptor.
#[derive(Default)]
struct Relation {
    /// Topology keys of the anti-affinity terms that keep the two apart.
    apart_keys: Vec<Str>,
    /// Topology keys of the constraints that count the pod.
    spread_keys: Vec<Str>,
    /// The preemptor's required affinity matches the pod.
    is_affine: bool,
}

/// The terms and constraints of the preemptor.
struct PreemptorTerms<'a> {
    template: &'a PodTemplate,
    cluster: &'a ClusterObjects,
    /// The topology keys and selectors of its constraints.
    constraints: Vec<(&'a Str, Selector)>,
}

impl<'a> PreemptorTerms<'a> {
    fn new(template: &'a PodTemplate, cluster: &'a ClusterObjects) -> Self {
        let constraints = template.spec.topology_spread_constraints.iter();
        let hard = constraints.filter(|it| it.when_unsatisfiable == "DoNotSchedule");
        // With an invalid selector PodTopologySpread fails, whichever pods are evicted.
        let constraints = hard.filter_map(|constraint| {
            let selector = Selector::new(constraint.label_selector.as_ref()).ok()?;
            Some((&constraint.topology_key, selector))
        });
        PreemptorTerms { template, cluster, constraints: constraints.collect() }
    }

    fn are_any(&self) -> bool {
        !(self.template.required_affinity.is_empty()
            && self.template.required_anti_affinity.is_empty()
            && self.constraints.is_empty())
    }

    /// As upstream: a namespace selector is also compared with empty labels.
    fn matches(&self, term: &AffinityTerm, other: &PodTemplate) -> bool {
        let labels = self.cluster.namespace_labels(&other.namespace);
        term.matches(&other.namespace, &Default::default(), &other.labels)
            || term.matches(&other.namespace, labels, &other.labels)
    }

    fn has_affinity_to(&self, other: &PodTemplate) -> bool {
        let terms = &self.template.required_affinity;
        !terms.is_empty() && terms.iter().all(|term| self.matches(term, other))
    }

    fn relation(&self, other: &PodTemplate) -> Relation {
        let own = self.template.required_anti_affinity.iter();
        let own = own.filter(|term| self.matches(term, other));
        let (namespace, labels) = (&self.template.namespace, &self.template.labels);
        let namespace_labels = self.cluster.namespace_labels(namespace);
        let existing = other.required_anti_affinity.iter();
        let existing = existing.filter(|term| term.matches(namespace, namespace_labels, labels));
        let counts =
            |selector: &Selector| other.namespace == *namespace && selector.matches(&other.labels);
        let spread = self.constraints.iter().filter(|(_, selector)| counts(selector));
        Relation {
            apart_keys: own.chain(existing).map(|term| term.topology_key.clone()).collect(),
            spread_keys: spread.map(|(key, _)| (*key).clone()).collect(),
            is_affine: self.has_affinity_to(other),
        }
    }

    /// Whether the constraints may count pods on some nodes of a domain and not on others (node inclusion policies).
    fn exclude_nodes(&self) -> bool {
        let spec = &self.template.spec;
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let is_honored = |policy: &Option<Str>| policy.as_deref() == Some("Honor");
        let mut constraints = spec.topology_spread_constraints.iter();
        self.constraints.len() > 1
            || !spec.node_selector.is_empty()
            || affinity.is_some()
            || constraints.any(|it| is_honored(&it.node_taints_policy))
    }
}

impl RelatedPods {
    /// The pods that are related to the preemptor.
    pub fn new(world: &World, preemptor: &PodInfo) -> RelatedPods {
        let terms = PreemptorTerms::new(&preemptor.template, world.cluster_objects());
        let is_self_affine = terms.has_affinity_to(&preemptor.template);
        let mut all = RelatedPods {
            pods: Vec::new(),
            by_domain: Map::default(),
            everywhere: Vec::new(),
            keys: Vec::new(),
            kept_away: Set::default(),
            relations: Map::default(),
            excludes_nodes: terms.exclude_nodes(),
        };
        let has_terms = terms.are_any();
        for node in world.node_infos() {
            let with_terms = node.pods().filter(|_| has_terms);
            let others = node.pods_with_required_anti_affinity().filter(|_| !has_terms);
            for other in with_terms.chain(others) {
                all.add(&terms, preemptor, other, node);
            }
        }
        all.pods.sort_compactly_by(|a, b| compare_pod_importance(&a.pod, &b.pod));
        for (at, related) in all.pods.iter().enumerate() {
            for (key, value) in related.helpful_domains() {
                if !all.keys.contains(key) {
                    all.keys.push(key.clone());
                }
                let in_domain = all.by_domain.entry((key.clone(), value.clone())).or_default();
                if in_domain.last() != Some(&at) {
                    in_domain.push(at);
                }
            }
            if is_self_affine && related.relation.is_affine {
                all.everywhere.push(at);
            }
        }
        all
    }

    fn add(
        &mut self,
        terms: &PreemptorTerms<'_>,
        preemptor: &PodInfo,
        other: &Arc<PodInfo>,
        node: NodeInfo<'_>,
    ) {
        let template = &other.template;
        let relation = self.relations.entry(template.id);
        let relation = relation.or_insert_with(|| Arc::new(terms.relation(template))).clone();
        let value = |key: &Str| node.labels().get(key).cloned();
        if has_lower_priority(other, preemptor) {
            let keys = relation.apart_keys.iter().chain(&relation.spread_keys);
            let domains = keys.map(value).collect();
            self.pods.push(RelatedPod { pod: other.clone(), row: node.row(), relation, domains });
        } else {
            let domains =
                relation.apart_keys.iter().filter_map(|key| Some((key.clone(), value(key)?)));
            self.kept_away.extend(domains);
        }
    }

    /// Whether a pod that cannot be evicted keeps the preemptor away from the node, if InterPodAffinity is enabled.
    pub fn keep_away(&self, node: NodeInfo<'_>) -> bool {
        let domains = node.labels().iter().map(|(key, value)| (key.clone(), value.clone()));
        !self.kept_away.is_empty() && domains.into_iter().any(|it| self.kept_away.contains(&it))
    }

    /// The number of related pods in the node's domains: those on the node included, and those in several of the domains repeatedly.
    pub fn number_in_domains(&self, node: NodeInfo<'_>) -> usize {
        self.everywhere.len() + self.in_domains(node).map(<[usize]>::len).sum::<usize>()
    }

    /// The related pods on other nodes, the most important first.
    pub fn of_node(&self, node: NodeInfo<'_>) -> Vec<&RelatedPod> {
        let mut indexes: Vec<usize> = self.in_domains(node).flatten().copied().collect();
        indexes.extend(&self.everywhere);
        indexes.sort_unstable();
        indexes.dedup();
        let related = indexes.into_iter().map(|at| &self.pods[at]);
        related.filter(|related| related.row != node.row()).collect()
    }

    fn in_domains(&self, node: NodeInfo<'_>) -> impl Iterator<Item = &[usize]> {
        let domains = self.keys.iter().filter_map(move |key| {
            let domain = (key.clone(), node.labels().get(key)?.clone());
            self.by_domain.get(&domain)
        });
        domains.map(Vec::as_slice)
    }

    /// The pods whose eviction may make the node feasible: these pods on it, which have lower priority, and at most `n_max` related pods
    /// on other nodes, the least important ones.
    pub fn potential_victims(
        &self,
        node: NodeInfo<'_>,
        on_node: Vec<Arc<PodInfo>>,
        n_max: usize,
    ) -> Vec<PotentialVictim> {
        let on_node = on_node.into_iter().map(|pod| PotentialVictim {
            may_be_needed: self.relations.get(&pod.template.id).is_some_and(|it| it.is_affine),
            same_effect: pod.resized.is_none().then(|| SameEffect {
                template: pod.template.id,
                row: Some(node.row()),
                shares_domain: [].into(),
            }),
            pod,
        });
        let related = self.of_node(node);
        let least_important = &related[related.len().saturating_sub(n_max)..];
        let elsewhere =
            least_important.iter().map(|it| it.potential_victim(node, self.excludes_nodes));
        on_node.chain(elsewhere).collect()
    }
}

impl RelatedPod {
    fn keys_and_domains(&self) -> impl Iterator<Item = (&Str, Option<&Str>)> {
        let keys = self.relation.apart_keys.iter().chain(&self.relation.spread_keys);
        keys.zip(&self.domains).map(|(key, domain)| (key, domain.as_ref()))
    }

    /// The domains in which its eviction can help. Constraints do not count terminating pods.
    fn helpful_domains(&self) -> impl Iterator<Item = (&Str, &Str)> {
        let n_keys = match self.pod.terminating {
            true => self.relation.apart_keys.len(),
            false => usize::MAX,
        };
        let domains = self.keys_and_domains().take(n_keys);
        domains.filter_map(|(key, domain)| Some((key, domain?)))
    }

    fn potential_victim(&self, node: NodeInfo<'_>, by_node: bool) -> PotentialVictim {
        let shares = |(key, domain): (&Str, Option<&Str>)| {
            domain.map(|domain| Some(domain) == node.labels().get(key))
        };
        let shares_domain: Box<[Option<bool>]> = self.keys_and_domains().map(shares).collect();
        let n_terms = self.relation.apart_keys.len();
        // Another domain's count would decrease, and with it perhaps the minimum.
        let counts_elsewhere = shares_domain[n_terms..].contains(&Some(false));
        let is_by_node = by_node && !self.relation.spread_keys.is_empty();
        PotentialVictim {
            pod: self.pod.clone(),
            may_be_needed: self.relation.is_affine || counts_elsewhere,
            same_effect: Some(SameEffect {
                template: self.pod.template.id,
                row: is_by_node.then_some(self.row),
                shares_domain,
            }),
        }
    }
}
