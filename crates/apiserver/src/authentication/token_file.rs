//! Files of static tokens (`--token-auth-file`): `token,user,uid,"group,group"` per line.

use super::User;

/// Why a token file is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenFileError {
    #[error(
        "line {line}: must have at least 3 columns (token, user name, user uid), found {found}"
    )]
    Columns { line: usize, found: usize },
    #[error("line {line}: a quote is not closed")]
    Quote { line: usize },
    #[error("line {line}: the user has no name")]
    Name { line: usize },
}

/// The tokens of a file and their users.
///
/// # Errors
///
/// When a line cannot be read.
pub fn read_token_file(text: &str) -> Result<Vec<(String, User)>, TokenFileError> {
    let mut all = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (at + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut columns = columns(line).ok_or(TokenFileError::Quote { line: at })?.into_iter();
        let found = columns.len();
        let (Some(token), Some(name), Some(uid)) = (columns.next(), columns.next(), columns.next())
        else {
            return Err(TokenFileError::Columns { line: at, found });
        };
        if name.is_empty() {
            return Err(TokenFileError::Name { line: at });
        }
        let groups = columns.next().unwrap_or_default();
        let groups = groups.split(',').map(str::trim).filter(|it| !it.is_empty());
        let user = User::authenticated(&name, groups.map(str::to_owned).collect());
        // A line without a token is ignored.
        if !token.is_empty() {
            all.push((token, User { uid, ..user }));
        }
    }
    Ok(all)
}

/// The columns of a line, of which some may be quoted; none if a quote is not closed.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut rest = line;
    loop {
        let column;
        if let Some(quoted) = rest.strip_prefix('"') {
            let (mut text, mut after) = quoted.split_once('"')?;
            let mut whole = text.to_owned();
            // A doubled quote stands for one.
            while let Some(more) = after.strip_prefix('"') {
                (text, after) = more.split_once('"')?;
                whole.push('"');
                whole.push_str(text);
            }
            (column, rest) = (whole, after);
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            column = rest[..end].trim().to_owned();
            rest = &rest[end..];
        }
        all.push(column);
        match rest.find(',') {
            Some(comma) => rest = rest[comma + 1..].trim_start(),
            None => return Some(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &[(&str, &str, &str, &[&str])]) {
        let got = read_token_file(text).expect("a file");
        let want: Vec<(String, User)> = want
            .iter()
            .map(|(token, name, uid, groups)| {
                let groups = groups.iter().map(|&it| it.to_owned()).collect();
                let user = User::authenticated(name, groups);
                ((*token).to_owned(), User { uid: (*uid).to_owned(), ..user })
            })
            .collect();
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn lines() {
        check("t,ann,1\n", &[("t", "ann", "1", &[])]);
        check(
            "t,ann,1,a\n\nu, bob ,2,\"a, b\"",
            &[("t", "ann", "1", &["a"]), ("u", "bob", "2", &["a", "b"])],
        );
        check("# none\n,ann,1\n", &[]);
        check(r#""t""u",ann,1,"#, &[("t\"u", "ann", "1", &[])]);
    }

    #[test]
    fn refusals() {
        let error = |text| read_token_file(text).expect_err("a bad file");
        assert_eq!(error("\nt,ann"), TokenFileError::Columns { line: 2, found: 2 });
        assert_eq!(error("t,ann,1,\"a"), TokenFileError::Quote { line: 1 });
        assert_eq!(error("t,,1"), TokenFileError::Name { line: 1 });
    }
}
