//! The servers that a URL names: one, or several of which the one that takes writes is used. Pure: connects to none.
//!
//! `postgres://user@a:5432,b:5432/umavez?target_session_attrs=read-write` is how libpq and its kin write it; sqlx reads
//! one server only.

use std::str::FromStr as _;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

/// What libpq calls the wish for a server that takes writes. We never wish for anything else.
const ATTRIBUTES: &str = "target_session_attrs=";
const WRITABLE: [&str; 3] = ["read-write", "primary", "any"];

/// How to reach each server, in the URL's order; never none.
pub(super) fn of(url: &str) -> Result<Vec<PgConnectOptions>, sqlx::Error> {
    each(url)?
        .iter()
        .map(|url| {
            let options = PgConnectOptions::from_str(url)?;
            Ok(options.application_name("umavez").extra_float_digits(None).disable_statement_logging())
        })
        .collect()
}

/// The same URL once for each server.
fn each(url: &str) -> Result<Vec<String>, sqlx::Error> {
    let (before, query) = url.split_once('?').unwrap_or((url, ""));
    let (scheme, rest) = before.split_once("://").unwrap_or(("postgres", before));
    // A password may hold `@` and `/` in the raw: the last `@` before the path ends it, as for any URL.
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let (servers, path) = rest.split_once('/').map_or((rest, ""), |(servers, path)| (servers, path));
    let mut kept = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.strip_prefix(ATTRIBUTES) {
            None => kept.push(parameter),
            Some(wish) if WRITABLE.contains(&wish) => {}
            Some(wish) => {
                let why = format!(
                    "target_session_attrs={wish} can't be had: the ledger writes; write read-write, or leave it out"
                );
                return Err(sqlx::Error::Configuration(why.into()));
            }
        }
    }
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Ok(servers.split(',').map(|server| format!("{scheme}://{user}{server}/{path}{query}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_one_server_or_several() {
        let table = [
            ("postgres://a/db", vec!["postgres://a/db"]),
            ("postgres://u:p%40@a:1,b:2/db", vec!["postgres://u:p%40@a:1/db", "postgres://u:p%40@b:2/db"]),
            (
                "postgres://u@a,[::1]:5/db?sslmode=require&target_session_attrs=read-write",
                vec!["postgres://u@a/db?sslmode=require", "postgres://u@[::1]:5/db?sslmode=require"],
            ),
            ("postgres:///db?host=/run/postgresql", vec!["postgres:///db?host=/run/postgresql"]),
            ("postgres://a,b?target_session_attrs=primary", vec!["postgres://a/", "postgres://b/"]),
        ];
        for (url, servers) in table {
            assert_eq!(each(url).unwrap(), servers, "{url}");
            assert_eq!(of(url).unwrap().len(), servers.len());
        }
    }

    #[test]
    fn a_replica_cannot_be_asked_for() {
        let error = of("postgres://a,b/db?target_session_attrs=standby").unwrap_err();
        assert!(error.to_string().contains("standby"), "{error}");
    }
}
