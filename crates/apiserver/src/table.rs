//! Tables for `kubectl get` (`meta.k8s.io/v1` `Table`): columns and cells of upstream's printers.

mod columns;
mod other_kinds;
mod pod;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::custom_resource::table as custom_table;
use crate::event_conversion;
use crate::request::Query;
use crate::schema::Kind;
use crate::server::partial_metadata;
use crate::status::ApiError;

/// A column and the function of its cells.
pub(crate) struct Column {
    name: &'static str,
    /// `string`, `integer` or `boolean`.
    kind: &'static str,
    /// Shown only with `-o wide`.
    is_wide: bool,
    cell: fn(&Value, Timestamp) -> Value,
}

/// What the rows include of their objects (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    /// # Errors
    ///
    /// When `includeObject` is something else.
    pub fn of(query: &Query) -> Result<Include, ApiError> {
        match query.get("includeObject") {
            None | Some("Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::Nothing),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                Err(ApiError::bad_request(format!("unrecognized includeObject value: {other:?}")))
            }
        }
    }
}

/// A row for an object.
pub fn row(kind: &Kind, object: &Value, now: Timestamp, include: Include) -> Value {
    let cells: Vec<Value> = match kind.custom() {
        Some(custom) => custom_table::cells(&custom.columns, object, now),
        None => {
            // Events have one table in both of their forms.
            let other = event_conversion::has_other_storage_version(kind)
                .then(|| event_conversion::to_storage_version(kind, object.clone()));
            let object = other.as_ref().unwrap_or(object);
            columns::of(kind).iter().map(|column| (column.cell)(object, now)).collect()
        }
    };
    let object = match include {
        Include::Nothing => Value::Null,
        Include::Metadata => partial_metadata(object),
        Include::Object => object.clone(),
    };
    json!({"cells": cells, "object": object})
}

/// A table of rows. `metadata` is that of a list.
pub fn table(kind: &Kind, metadata: &Value, rows: &[Value], with_columns: bool) -> Value {
    let definition = |column: &Column| {
        json!({
            "name": column.name,
            "type": column.kind,
            "format": if column.name == "Name" && !column.is_wide { "name" } else { "" },
            "description": "",
            "priority": i32::from(column.is_wide),
        })
    };
    let definitions: Vec<Value> = match kind.custom() {
        Some(custom) => {
            let own = custom.columns.iter().map(custom_table::Column::definition);
            std::iter::once(definition(&columns::NAME)).chain(own).collect()
        }
        None => columns::of(kind).iter().map(definition).collect(),
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": if with_columns { Value::Array(definitions) } else { Value::Null },
        "rows": rows,
    })
}

/// The time since a timestamp, as in the column AGE; `<unknown>` without one.
pub(crate) fn since(time: &Value, now: Timestamp) -> String {
    match time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(time) => human_duration(now.as_second() - time.as_second()),
        None => "<unknown>".to_owned(),
    }
}

/// A duration in at most two units, coarser the longer it is (upstream's `HumanDuration`).
pub(crate) fn human_duration(seconds: i64) -> String {
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2_920 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_readable_durations() {
        let cases = [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (301, "5m1s"),
            (3_599, "59m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (86_400 * 100, "100d"),
            (86_400 * 800, "2y70d"),
            (86_400 * 3_650, "10y"),
        ];
        for (seconds, want) in cases {
            assert_eq!(human_duration(seconds), want);
        }
    }
}
