//! The values of a provider file: conditions, durations, header names, statuses; each refuses what it can't mean.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use toml::Spanned;

use super::rules::Test;

/// Conditions: a place and what its value must be (one text, one of several, present or absent).
#[derive(Default)]
pub(super) struct When(pub(super) Vec<(Spanned<String>, Test)>);

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Conditions;
        impl<'de> Visitor<'de> for Conditions {
            type Value = When;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of conditions, as in { \"$.event\" = \"created\" }")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<When, A::Error> {
                let mut when = Vec::new();
                while let Some(condition) = map.next_entry()? {
                    when.push(condition);
                }
                Ok(When(when))
            }
        }
        deserializer.deserialize_map(Conditions)
    }
}

impl<'de> Deserialize<'de> for Test {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Condition;
        impl<'de> Visitor<'de> for Condition {
            type Value = Test;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list of texts, true (present) or false (absent)")
            }
            fn visit_bool<E>(self, present: bool) -> Result<Test, E> {
                Ok(Test::Present(present))
            }
            fn visit_str<E>(self, text: &str) -> Result<Test, E> {
                Ok(Test::OneOf(vec![text.as_bytes().into()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Test, A::Error> {
                let mut texts: Vec<Box<[u8]>> = Vec::new();
                while let Some(text) = seq.next_element::<String>()? {
                    texts.push(text.as_bytes().into());
                }
                Ok(Test::OneOf(texts))
            }
        }
        deserializer.deserialize_any(Condition)
    }
}

/// A duration as `"90s"`, `"72h"`, `"8d"`.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) Duration);

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let mend =
            || format!("\"{text}\" is no duration; write \"500ms\", \"90s\", \"5m\", \"72h\" or \"8d\"");
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(mend)?;
        let (number, unit) = text.split_at(digits);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(mend()),
        };
        let number: u64 = number.parse().map_err(|_| mend())?;
        number.checked_mul(millis).map(|millis| Self(Duration::from_millis(millis))).ok_or_else(mend)
    }
}

pub(super) struct Header(pub(super) HeaderName);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let name = HeaderName::from_bytes(text.as_bytes());
        name.map(Self).map_err(|_| D::Error::custom(format!("no header can be named \"{text}\"")))
    }
}

/// Statuses as `["200-299", "304"]`.
#[derive(Deserialize)]
#[serde(try_from = "Vec<String>")]
pub(super) struct Statuses(pub(super) Vec<RangeInclusive<u16>>);

impl TryFrom<Vec<String>> for Statuses {
    type Error = String;
    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        let range = |text: &String| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse()) else {
                return Err(format!("\"{text}\" is no status; write \"200\" or \"200-299\""));
            };
            if !(100..=599).contains(&first) || !(first..=599).contains(&last) {
                return Err(format!("\"{text}\" is no range of statuses from 100 to 599"));
            }
            Ok(first..=last)
        };
        texts.iter().map(range).collect::<Result<_, _>>().map(Self)
    }
}
