//! What is wrong with a configuration, said so that it can be mended: place, field, what, mend. Holds no
//! value of a secret.

use std::fmt;

/// A spot in a file, counted from 1; columns count characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    /// `None` where the whole file, or no file, is meant.
    pub at: Option<(usize, usize)>,
}

impl Place {
    /// The place of byte `offset` of `text`.
    pub(super) fn of(file: &str, text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { file: file.to_owned(), at: Some((line, column)) }
    }

    /// The file as a whole.
    pub(super) fn whole(file: &str) -> Self {
        Self { file: file.to_owned(), at: None }
    }
}

/// `file:line:column`, or `file`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// What is wrong with one value, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub what: String,
    pub mend: String,
    /// The value is right as it is written, and what it refers to isn't there: a variable, a secret's file.
    pub absent: bool,
}

impl Fault {
    pub(super) fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { what: what.into(), mend: mend.into(), absent: false }
    }

    pub(super) fn absent(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { absent: true, ..Self::new(what, mend) }
    }
}

/// `what; mend`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.mend)
    }
}

/// One reason not to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// As in the file: `listen.public`, `route "pix".lease`.
    pub field: String,
    pub fault: Fault,
}

/// `file:line:column: field: what is wrong; mend`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.fault)
    }
}

/// Every reason not to start, in the file's order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<Problem>);

impl ConfigErrors {
    pub(super) fn one(place: Place, field: &str, fault: Fault) -> Self {
        Self(vec![Problem { place, field: field.to_owned(), fault }])
    }
}

/// One problem a line.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// A setting that works and is risky.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub place: Place,
    /// As in the file: `route "pix".secret`.
    pub field: String,
    pub text: String,
}

/// `file:line:column: field: text`
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.text)
    }
}

/// The name in `known` that `written` was most likely meant to be.
pub(super) fn nearest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let bound = (written.chars().count() / 3).max(1) + 1;
    known
        .into_iter()
        .map(|name| (distance(&written.to_lowercase(), name), name))
        .filter(|(distance, name)| *distance <= bound || (written.len() > 2 && name.starts_with(written)))
        .min()
        .map(|(_, name)| name)
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let known = ["timeout", "hot_ttl", "durable_ttl", "secret"];
        for (written, meant) in [
            ("timout", Some("timeout")),
            ("hot-ttl", Some("hot_ttl")),
            ("Secret", Some("secret")),
            ("durable", Some("durable_ttl")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, known), meant, "{written}");
        }
    }

    #[test]
    fn places_count_characters_from_one() {
        let text = "a = 1\nß = ü9\n";
        let nine = text.find('9').unwrap();
        assert_eq!(Place::of("f", text, nine).to_string(), "f:2:6");
        assert_eq!(Place::of("f", text, 0).to_string(), "f:1:1");
        assert_eq!(Place::of("f", text, 999).to_string(), "f:3:1");
    }
}
