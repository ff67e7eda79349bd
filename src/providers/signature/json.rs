//! Reading single fields out of JSON text for signatures that stand in bodies. No DOM; of repeated members the last
//! counts. Items and keys are found elsewhere.

use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Every,
}

impl JsonPath {
    /// `a.b[*].c`, with or without `$` in front.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let name = part.trim_end_matches("[*]");
            if name.contains(['[', ']', '*']) {
                return Err(format!("`{text}`: only names and [*] are understood"));
            }
            if !name.is_empty() {
                steps.push(Step::Member(name.to_owned()));
            }
            steps.extend(std::iter::repeat_n(Step::Every, (part.len() - name.len()) / 3));
        }
        if steps.is_empty() { Err(format!("`{text}` names nothing")) } else { Ok(Self(steps)) }
    }

    /// A path to one value: without `[*]`.
    pub(super) fn parse_one(text: &str) -> Result<Self, String> {
        let path = Self::parse(text)?;
        if path.0.contains(&Step::Every) { Err(format!("`{text}` should name one value")) } else { Ok(path) }
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Member(name) if index == 0 => write!(f, "{name}")?,
                Step::Member(name) => write!(f, ".{name}")?,
                Step::Every => write!(f, "[*]")?,
            }
        }
        Ok(())
    }
}

/// The body as JSON's text, less the byte order mark that some writers put in front: keys are read past it too.
pub(super) fn body_text(body: &[u8]) -> Option<&str> {
    std::str::from_utf8(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body)).ok()
}

/// The JSON texts of all values at the path; `None` if any branch of it leads nowhere.
pub(super) fn every<'a>(json: &'a str, path: &JsonPath) -> Option<Vec<&'a str>> {
    path.0.iter().try_fold(vec![json], |values, step| match step {
        Step::Member(name) => values.into_iter().map(|value| member(value, name)).collect(),
        Step::Every => {
            let lists: Option<Vec<Vec<&'a str>>> = values.into_iter().map(elements).collect();
            Some(lists?.concat())
        }
    })
}

/// The scalar at the path as text: strings unescaped, numbers as their digits, `true` and `false` as words.
pub(super) fn text(json: &str, path: &JsonPath) -> Option<String> {
    let value = every(json, path)?.pop()?;
    match value.as_bytes().first()? {
        b'"' => serde_json::from_str(value).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(value.to_owned()),
    }
}

fn elements(json: &str) -> Option<Vec<&str>> {
    let values: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    Some(values.into_iter().map(RawValue::get).collect())
}

fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value = deserializer.deserialize_map(Member(name)).ok()?;
    deserializer.end().ok()?;
    value.map(RawValue::get)
}

/// Visits an object and keeps the last value of one member.
struct Member<'n>(&'n str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(wanted) = map.next_key_seed(IsNamed(self.0))? {
            if wanted {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

struct IsNamed<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for IsNamed<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsNamed<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_read_as_text() {
        let json = r#"{"a":{"b":1.50,"c":"x\u0041","d":null,"e":true,"f":[]},"a2":0,"a":{"b":12345678901234567890}}"#;
        let read = |path: &str| text(json, &JsonPath::parse_one(path).unwrap());
        assert_eq!(
            read("a.b").as_deref(),
            Some("12345678901234567890"),
            "the last of repeated members counts"
        );
        assert_eq!(read("a.c"), None);
        assert_eq!(read("$.a2").as_deref(), Some("0"));
        let one = r#"{"c":"x\u0041","e":true,"d":null,"f":[]}"#;
        let read = |path: &str| text(one, &JsonPath::parse_one(path).unwrap());
        assert_eq!(read("c").as_deref(), Some("xA"));
        assert_eq!(read("e").as_deref(), Some("true"));
        assert_eq!(read("d"), None);
        assert_eq!(read("f"), None);
    }

    #[test]
    fn a_branch_that_leads_nowhere_spoils_the_list() {
        let path = JsonPath::parse("n[*].i").unwrap();
        assert_eq!(every(r#"{"n":[{"i":1},{"i":2}]}"#, &path), Some(vec!["1", "2"]));
        assert_eq!(every(r#"{"n":[{"i":1},{"j":2}]}"#, &path), None);
        assert_eq!(path.to_string(), "n[*].i");
        assert_eq!(JsonPath::parse("$[*]").unwrap().to_string(), "[*]");
    }
}
