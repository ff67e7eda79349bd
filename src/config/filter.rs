//! What is logged, as an operator filters it: a word that `tracing` would take for the name of a module, and so log
//! nothing, is a fault.

use tracing_subscriber::EnvFilter;

use super::problem::{Fault, nearest};

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// What our own events are called by, with what is below it.
const OWN: &str = "umavez";
const MEND: &str = "write such as \"info\" or \"umavez=debug,warn\"";

/// A filter that can be used, and whether anything of umavez passes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    pub text: String,
    /// False where it names others only.
    pub names_us: bool,
}

impl LogFilter {
    /// Parses a filter such as `info` or `umavez=debug,warn`.
    ///
    /// # Errors
    /// What is wrong, also where `tracing` would take it: a bare word that is neither a level nor ours, and a target
    /// that is nearly ours.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if let Err(error) = EnvFilter::builder().parse(text) {
            return Err(Fault::new(format!("{text:?} is no filter: {error}"), MEND));
        }
        let mut names_us = false;
        for directive in directives(text) {
            let target = directive.split(['=', '[']).next().unwrap_or_default().trim();
            let crate_name = target.split("::").next().unwrap_or_default();
            let bare = !directive.contains(['=', '[']);
            let level = bare && is_level(target);
            // Spans without a target are everybody's.
            names_us |= level || target.is_empty() || crate_name == OWN;
            if level || target.is_empty() || crate_name == OWN {
                continue;
            }
            let meant = if bare { nearest(target, LEVELS) } else { None };
            if let Some(near) = meant.or_else(|| nearest(crate_name, [OWN])) {
                return Err(Fault::new(
                    format!("{target:?} is no level and nothing of umavez: it would log nothing"),
                    format!("did you mean \"{near}\"?"),
                ));
            }
            if bare {
                let what = format!("{target:?} is no level and nothing of umavez");
                return Err(Fault::new(what, format!("{MEND}; of another part, \"{target}=debug\"")));
            }
        }
        Ok(Self { text: text.to_owned(), names_us })
    }
}

/// As `tracing` reads levels: by name in any case, or by number.
fn is_level(word: &str) -> bool {
    LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)) || matches!(word.as_bytes(), [b'0'..=b'5'])
}

/// What stands between commas.
fn directives(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|directive| !directive.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `level = "inof"` passed for the name of a module, and nothing at all was logged.
    #[test]
    fn a_word_that_would_log_nothing_is_no_filter() {
        for (text, names_us) in [
            ("info", true),
            ("WARN", true),
            ("off", true),
            ("3", true),
            ("umavez", true),
            ("umavez=debug,warn", true),
            ("umavez::request=info", true),
            ("warn,hyper=debug", true),
            ("[request{route=a}]=debug", true),
            ("umavez[request]=debug", true),
            ("hyper=debug", false),
            ("sqlx=info,rustls=warn", false),
        ] {
            let parsed = LogFilter::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
            assert_eq!(parsed.names_us, names_us, "{text}");
        }
        for (text, mend) in [
            ("inof", "did you mean \"info\"?"),
            ("warn,debgu", "did you mean \"debug\"?"),
            ("verbose", "write such as"),
            ("hyper", "\"hyper=debug\""),
            ("umavze=debug", "did you mean \"umavez\"?"),
            ("info=umavez", "write such as"),
            ("umavez=loud", "write such as"),
            ("7", "write such as"),
        ] {
            let fault = LogFilter::parse(text).unwrap_err();
            assert!(fault.mend.contains(mend), "{text}: {fault:?}");
        }
    }
}
