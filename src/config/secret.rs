//! Secrets and `${NAME}`: where their values come from. No message holds a value.

use std::fmt;
use std::io::Read as _;
use std::sync::Arc;

use super::Environment;
use super::problem::Fault;
use super::source::{Field, Section, article};

/// Longest secret file that is read, bytes.
const SECRET_FILE_MAX: u64 = 64 * 1024;

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Arc<str>);

impl Secret {
    /// The text itself: for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Text with every `${NAME}` replaced by what the environment gave.
pub(super) struct Expanded {
    pub(super) text: String,
    /// True where at least one `${NAME}` was replaced.
    pub(super) from_env: bool,
}

/// Replaces every `${NAME}` in `text`; `$${` stands for `${` itself.
pub(super) fn expand(text: &str, env: &Environment) -> Result<Expanded, Fault> {
    let mut expanded = Expanded { text: String::with_capacity(text.len()), from_env: false };
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(escaped) = before.strip_suffix('$') {
            expanded.text.push_str(escaped);
            expanded.text.push_str("${");
            rest = after;
            continue;
        }
        let Some((name, after)) = after.split_once('}') else {
            return Err(Fault::new("a `${` is not closed", "write ${NAME}, or $${ for the characters"));
        };
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(Fault::new(
                "a `${…}` holds no name of an environment variable",
                "write ${NAME} with letters, digits and _",
            ));
        }
        let Some(value) = env.get(name) else {
            let mend = format!("set {name}, or take the value from a file");
            return Err(Fault::absent(format!("the environment variable {name} is not set"), mend));
        };
        expanded.text.push_str(before);
        expanded.text.push_str(value);
        expanded.from_env = true;
        rest = after;
    }
    expanded.text.push_str(rest);
    Ok(expanded)
}

/// Whether text is written as names of environment variables are.
fn is_variable(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

impl Field<'_> {
    /// Text with `${NAME}` replaced; what is wrong is reported.
    pub(super) fn expanded(&self) -> Option<Expanded> {
        match expand(self.text()?, self.source.env) {
            Ok(expanded) => Some(expanded),
            Err(fault) => {
                self.report(fault);
                None
            }
        }
    }

    /// One secret: `"${NAME}"`, `{ file = "…" }`, or the text itself, which is warned of.
    pub(super) fn secret(&self) -> Option<Secret> {
        let (text, whence) = if self.value.as_table().is_some() {
            (self.named_file()?, "the file")
        } else if self.value.is_str() {
            let expanded = self.expanded()?;
            if !expanded.from_env {
                let text = match expanded.text.strip_prefix('$') {
                    Some(name) if is_variable(name) => {
                        "begins with $ as a variable does, and is taken as it stands; write \"${NAME}\", with braces"
                    }
                    Some(_) | None => {
                        "the secret stands in this file; \"${NAME}\" or { file = \"…\" } keeps it out"
                    }
                };
                self.source.warn(self.span.start, &self.name, text);
            }
            (expanded.text, "the text")
        } else {
            let mend = "write \"${NAME}\", { file = \"/run/secrets/name\" }, or a list of these";
            self.fail(format!("is {}, not a secret", article(self.value)), mend);
            return None;
        };
        if text.trim().is_empty() {
            let what = format!("is empty: {whence} holds no secret");
            self.report(Fault::absent(what, "give it a value, or leave it out"));
            return None;
        }
        Some(Secret(text.into()))
    }

    /// Text that is no secret: as it stands, with `${NAME}` replaced, or `{ file = "…" }`.
    pub(super) fn text_or_file(&self) -> Option<String> {
        if self.value.as_table().is_some() { self.named_file() } else { Some(self.expanded()?.text) }
    }

    /// What `{ file = "…" }` names.
    fn named_file(&self) -> Option<String> {
        let table = self.value.as_table();
        let section = Section::open(self.source, self.name.clone(), table, self.span.clone(), &["file"]);
        let Some(file) = section.field("file") else {
            section.fail("file", Fault::new("is missing", "write { file = \"/run/secrets/name\" }"));
            return None;
        };
        file.file_content()
    }

    /// The content of the file that this field names, without its last line's end.
    fn file_content(&self) -> Option<String> {
        let path = self.source.directory.join(self.expanded()?.text);
        let shown = path.display();
        let mut content = String::new();
        let read = std::fs::File::open(&path)
            .and_then(|file| file.take(SECRET_FILE_MAX + 1).read_to_string(&mut content));
        match read {
            Ok(length) if u64::try_from(length).is_ok_and(|length| length <= SECRET_FILE_MAX) => {
                let line = content.strip_suffix('\n').unwrap_or(&content);
                Some(line.strip_suffix('\r').unwrap_or(line).to_owned())
            }
            Ok(_) => {
                self.fail(format!("{shown} is longer than 64KiB"), "name a file that holds only the secret");
                None
            }
            Err(error) => {
                let mend = "mend the path, or let umavez's user read it";
                self.report(Fault::absent(format!("{shown} cannot be read: {error}"), mend));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_and_a_missing_one_is_named() {
        let env =
            Environment::from([("A".to_owned(), "s3cret".to_owned()), ("B_2".to_owned(), "x".to_owned())]);
        for (text, value, from_env) in [
            ("${A}", "s3cret", true),
            ("redis://u:${A}@h/${B_2}", "redis://u:s3cret@h/x", true),
            ("plain", "plain", false),
            ("$${A}", "${A}", false),
            ("a$b", "a$b", false),
        ] {
            let expanded = expand(text, &env).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!((expanded.text.as_str(), expanded.from_env), (value, from_env), "{text}");
        }
        for (text, why) in [("${C}", "variable C is not set"), ("${", "not closed"), ("${a b}", "no name")] {
            let fault = expand(text, &env).map(|_| ()).unwrap_err();
            assert!(fault.what.contains(why), "{text}: {fault}");
        }
    }
}
