//! The table of pending pods on the dashboard, as keys change it: selection, filter and order; and the explanation of a pod.

use super::cluster_view::PendingGroup;
use super::dashboard::short;
use crate::terminal::Key;
use crate::text::{Alignment, Line, Style, Table, grouped};
use loadmaster_stdx::SortCompactly as _;

/// The keys, for the last line of the screen.
const KEYS: &str = "  q quit  ↑↓ select  enter explain  / filter  s sort";
const KEYS_OF_DETAILS: &str = "  q quit  ↑↓ scroll  esc back";
const KEYS_OF_FILTER: &str = "  enter keep filter  esc remove filter";

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct PendingTable {
    /// The pod of the selected row.
    selected: Option<String>,
    order: Order,
    /// Rows without this text are not shown.
    filter: String,
    is_typing: bool,
    details: Option<Details>,
}

/// A text in place of the dashboard.
#[derive(Debug)]
struct Details {
    lines: Vec<Line>,
    /// The first line that is shown.
    top: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    /// Most pods first.
    #[default]
    Pods,
    Name,
    Reason,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyRequest {
    Quit,
    /// Explain the pod, `namespace/name`.
    Explain(String),
}

impl PendingTable {
    /// Handles a key; `page` is the number of rows that are shown.
    pub fn press(&mut self, key: Key, groups: &[PendingGroup], page: usize) -> Option<KeyRequest> {
        if key == Key::Interrupt {
            return Some(KeyRequest::Quit);
        }
        if self.is_typing {
            self.type_filter(key);
            return None;
        }
        if matches!(key, Key::Char('q' | 'Q')) {
            return Some(KeyRequest::Quit);
        }
        if let Some(details) = &mut self.details {
            match moved(key, details.top, details.lines.len(), page) {
                Some(top) => details.top = top.min(details.lines.len().saturating_sub(page)),
                None if matches!(key, Key::Escape | Key::Enter | Key::Backspace) => {
                    self.details = None;
                }
                None => {}
            }
            return None;
        }
        let rows = self.rows(groups);
        let at = rows.iter().position(|row| Some(&row.example) == self.selected.as_ref());
        match key {
            Key::Enter => {
                let row = rows.get(at.unwrap_or(0))?;
                return Some(KeyRequest::Explain(row.example.clone()));
            }
            Key::Char('/') => self.is_typing = true,
            Key::Char('s') => {
                self.order = match self.order {
                    Order::Pods => Order::Name,
                    Order::Name => Order::Reason,
                    Order::Reason => Order::Pods,
                };
            }
            Key::Escape => (self.selected, self.filter) = (None, String::new()),
            key => {
                let next = match at {
                    // The first key selects the first row.
                    None => moved(key, 0, rows.len(), page).map(|_| 0),
                    Some(at) => moved(key, at, rows.len(), page),
                };
                if let Some(row) = next.and_then(|next| rows.get(next)) {
                    self.selected = Some(row.example.clone());
                }
            }
        }
        None
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.is_typing = false,
            Key::Escape => (self.is_typing, self.filter) = (false, String::new()),
            _ => {}
        }
    }

    /// Shows a text until it is closed.
    pub fn show(&mut self, lines: Vec<Line>) {
        self.details = Some(Details { lines, top: 0 });
    }

    /// The visible part of the text that is shown in place of the dashboard.
    pub fn details(&self, page: usize) -> Option<Vec<Line>> {
        let Details { lines, top } = self.details.as_ref()?;
        Some(lines.iter().skip(*top).take(page).cloned().collect())
    }

    /// The last line of the screen.
    pub fn keys(&self) -> Line {
        let keys = match (&self.details, self.is_typing) {
            (Some(_), _) => KEYS_OF_DETAILS,
            (None, true) => KEYS_OF_FILTER,
            (None, false) => KEYS,
        };
        Line::new(Style::Dim, keys)
    }

    /// The rows, filtered and in order.
    fn rows<'g>(&self, groups: &'g [PendingGroup]) -> Vec<&'g PendingGroup> {
        let wanted = self.filter.to_lowercase();
        let has_text = |text: &str| text.to_lowercase().contains(&wanted);
        let is_wanted =
            |group: &&PendingGroup| has_text(&group.example) || has_text(&group.message);
        let mut rows: Vec<&PendingGroup> = groups.iter().filter(is_wanted).collect();
        match self.order {
            Order::Pods => {}
            Order::Name => rows.sort_compactly_by(|a, b| a.example.cmp(&b.example)),
            Order::Reason => {
                rows.sort_compactly_by(|a, b| short(&a.message).cmp(short(&b.message)))
            }
        }
        rows
    }

    /// The table, with at most this number of rows: those around the selected one.
    pub fn lines(&self, groups: &[PendingGroup], page: usize) -> Vec<Line> {
        if groups.is_empty() {
            return Vec::new();
        }
        let rows = self.rows(groups);
        let at = rows.iter().position(|row| Some(&row.example) == self.selected.as_ref());
        let top = at.unwrap_or(0).saturating_sub(page / 2).min(rows.len().saturating_sub(page));
        let mut table = Table::new(&[Alignment::Right, Alignment::Left, Alignment::Left]);
        let mark = |order: Order, name: &str| match self.order == order {
            true => format!("{name}*"),
            false => name.to_owned(),
        };
        let heads =
            [(Order::Pods, "PENDING"), (Order::Name, "FOR EXAMPLE"), (Order::Reason, "REASON")];
        table.row(Style::Dim, heads.map(|(order, name)| mark(order, name)));
        for (nth, row) in rows.iter().enumerate().skip(top).take(page) {
            let style = match row.is_gated {
                _ if Some(nth) == at => Style::Bold,
                true => Style::Dim,
                false => Style::Warn,
            };
            let n_pods = grouped(row.n_pods as u64);
            let n_pods = if Some(nth) == at { format!("> {n_pods}") } else { n_pods };
            table.row(style, [n_pods, row.example.clone(), short(&row.message).to_owned()]);
        }
        let mut lines = table.lines(2);
        let mut notes = Vec::new();
        if rows.len() > page {
            let last = (top + page).min(rows.len());
            notes.push(format!("{} to {last} of {} reasons", top + 1, rows.len()));
        }
        if self.is_typing || !self.filter.is_empty() {
            let cursor = if self.is_typing { "_" } else { "" };
            notes.push(format!("filter: {}{cursor}", self.filter));
        }
        if !notes.is_empty() {
            lines.push(Line::new(Style::Dim, format!("  {}", notes.join(", "))));
        }
        lines
    }
}

/// Where a key leads from `at` in a list of `n`; none if it does not move.
fn moved(key: Key, at: usize, n: usize, page: usize) -> Option<usize> {
    let to = match key {
        Key::Up | Key::Char('k') => at.saturating_sub(1),
        Key::Down | Key::Char('j') => at + 1,
        Key::PageUp => at.saturating_sub(page),
        Key::PageDown => at + page,
        Key::Home => 0,
        Key::End => n,
        _ => return None,
    };
    Some(to.min(n.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn groups() -> Vec<PendingGroup> {
        let group = |n_pods, example: &str, message: &str| PendingGroup {
            n_pods,
            message: message.to_owned(),
            example: example.to_owned(),
            is_gated: message.starts_with("waiting"),
        };
        vec![
            group(7, "shop/web-1", "0/3 nodes are available: 3 Insufficient cpu."),
            group(2, "shop/db-1", "0/3 nodes are available: 3 node(s) had untolerated taint(s)."),
            group(1, "a/gated", "waiting for scheduling gates: [example.com/quota]"),
            group(1, "b/big", "0/3 nodes are available: 3 Insufficient memory."),
        ]
    }

    /// The screen after these keys, at 80 columns and with three rows; and what the last key asks for.
    #[track_caller]
    fn check(keys: &[Key], want: &Expect) {
        let mut table = PendingTable::default();
        let mut request = None;
        for key in keys {
            request = table.press(*key, &groups(), 3);
            if let Some(KeyRequest::Explain(pod)) = &request {
                let lines = (1..6).map(|n| Line::new(Style::Plain, format!("{pod} line {n}")));
                table.show(lines.collect());
            }
        }
        let mut lines = table.details(3).unwrap_or_else(|| table.lines(&groups(), 3));
        lines.push(table.keys());
        let lines = lines.iter().map(|line| format!("|{}\n", line.render(80, false)));
        let request = request.map(|it| format!("{it:?}\n")).unwrap_or_default();
        want.assert_eq(&(lines.collect::<String>() + &request));
    }

    fn typed(text: &str) -> Vec<Key> {
        text.chars().map(Key::Char).collect()
    }

    #[test]
    fn rows_are_selected_and_scrolled() {
        check(
            &[],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &[Key::Down],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |       > 7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &[Key::Down, Key::Down, Key::Char('j'), Key::Down, Key::Down],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |       > 1  b/big        3 Insufficient memory.
                |  2 to 4 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &[Key::Down, Key::End, Key::Up],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |       > 1  a/gated      waiting for scheduling gates: [example.com/quota]
                |         1  b/big        3 Insufficient memory.
                |  2 to 4 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        check(
            &typed("s"),
            &expect![[r#"
                |  PENDING  FOR EXAMPLE*  REASON
                |        1  a/gated       waiting for scheduling gates: [example.com/quota]
                |        1  b/big         3 Insufficient memory.
                |        2  shop/db-1     3 node(s) had untolerated taint(s).
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &typed("ss"),
            &expect![[r#"
                |  PENDING  FOR EXAMPLE  REASON*
                |        7  shop/web-1   3 Insufficient cpu.
                |        1  b/big        3 Insufficient memory.
                |        2  shop/db-1    3 node(s) had untolerated taint(s).
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &typed("/INSUFF"),
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         7  shop/web-1   3 Insufficient cpu.
                |         1  b/big        3 Insufficient memory.
                |  filter: INSUFF_
                |  enter keep filter  esc remove filter
            "#]],
        );
        check(
            &[&typed("/shopx")[..], &[Key::Backspace, Key::Enter, Key::Down]].concat(),
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |       > 7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |  filter: shop
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &[&typed("/shop")[..], &[Key::Escape]].concat(),
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &typed("/q"),
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  filter: q_
                |  enter keep filter  esc remove filter
            "#]],
        );
    }

    #[test]
    fn a_pod_is_explained() {
        check(
            &[Key::Down, Key::Down, Key::Enter],
            &expect![[r#"
                |shop/db-1 line 1
                |shop/db-1 line 2
                |shop/db-1 line 3
                |  q quit  ↑↓ scroll  esc back
                Explain("shop/db-1")
            "#]],
        );
        check(
            &[Key::Enter, Key::Down, Key::PageDown],
            &expect![[r#"
                |shop/web-1 line 3
                |shop/web-1 line 4
                |shop/web-1 line 5
                |  q quit  ↑↓ scroll  esc back
            "#]],
        );
        check(
            &[Key::Enter, Key::Escape],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  1 to 3 of 4 reasons
                |  q quit  ↑↓ select  enter explain  / filter  s sort
            "#]],
        );
        check(
            &[Key::Enter, Key::Char('q')],
            &expect![[r#"
                |shop/web-1 line 1
                |shop/web-1 line 2
                |shop/web-1 line 3
                |  q quit  ↑↓ scroll  esc back
                Quit
            "#]],
        );
        check(
            &[Key::Char('/'), Key::Interrupt],
            &expect![[r#"
                |  PENDING*  FOR EXAMPLE  REASON
                |         7  shop/web-1   3 Insufficient cpu.
                |         2  shop/db-1    3 node(s) had untolerated taint(s).
                |         1  a/gated      waiting for scheduling gates: [example.com/quota]
                |  1 to 3 of 4 reasons, filter: _
                |  enter keep filter  esc remove filter
                Quit
            "#]],
        );
    }
}
