//! The `[signature]` table as it is written, and what is wrong with one that contradicts itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::describe::AsWritten;
use super::format::Format;
use super::json::JsonPath;
use super::keys::{KeyEncoding, KeyText};
use super::place::{Place, Source};
use super::template::Template;
use super::{Ahead, Method, Scheme, Signature, Stamp, StampUnit};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignatureFile {
    scheme: Scheme,
    /// Places and the values that they must have for this way to be meant; of a header's list, one element.
    #[serde(default)]
    when: BTreeMap<String, String>,
    header: Option<String>,
    query: Option<String>,
    form: Option<String>,
    json: Option<String>,
    /// With `items`: the signature's path within each item.
    item: Option<String>,
    items: Option<String>,
    format: Option<String>,
    separator: Option<char>,
    signed: Option<OneOrMany>,
    body_digest: Option<String>,
    timestamp: Option<String>,
    #[serde(default)]
    timestamp_unit: StampUnit,
    tolerance: Option<String>,
    #[serde(default)]
    ahead: Ahead,
    #[serde(default)]
    key: KeyEncoding,
    key_prefix: Option<String>,
    #[serde(default)]
    only_prefixed: bool,
    /// Looked at only where everything before is absent from the delivery.
    #[serde(default)]
    otherwise: Vec<SignatureFile>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn texts(&self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text.clone()],
            Self::Many(texts) => texts.clone(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BadTable(String);

impl TryFrom<SignatureFile> for Signature {
    type Error = BadTable;

    fn try_from(mut file: SignatureFile) -> Result<Self, BadTable> {
        let others = std::mem::take(&mut file.otherwise);
        let mut methods = vec![file.into_method().map_err(BadTable)?];
        for other in others {
            if !other.otherwise.is_empty() {
                return Err(BadTable("`otherwise` can't hold an `otherwise` of its own".to_owned()));
            }
            methods.push(other.into_method().map_err(BadTable)?);
        }
        Ok(Self { methods })
    }
}

impl SignatureFile {
    fn into_method(self) -> Result<Method, String> {
        let place = self.place()?;
        let format = self.format()?;
        let signed = self.signed()?;
        let written = AsWritten {
            format: self.format.clone(),
            signed: self.signed.as_ref().map(OneOrMany::texts).unwrap_or_default(),
        };
        let stamp = Stamp {
            source: self.timestamp.as_deref().map(Source::parse).transpose()?,
            unit: self.timestamp_unit,
            tolerance: self.tolerance.as_deref().map(duration).transpose()?,
            ahead: self.ahead,
        };
        let when = self.when.iter().map(|(place, value)| Ok((Source::parse(place)?, value.clone())));
        let method = Method {
            scheme: self.scheme,
            when: when.collect::<Result<_, String>>()?,
            place,
            format,
            signed,
            body_digest: self.body_digest.as_deref().map(Source::parse).transpose()?,
            stamp,
            key: KeyText { encoding: self.key, prefix: self.key_prefix, only_prefixed: self.only_prefixed },
            written,
        };
        method.consistent()?;
        Ok(method)
    }

    fn place(&self) -> Result<Place, String> {
        const WANTED: &str =
            "a signature stands in one of `header`, `query`, `form`, `json`, or `items` with `item`";
        match (&self.header, &self.query, &self.form, &self.json, &self.items, &self.item) {
            (Some(name), None, None, None, None, None) => {
                Ok(Place::Once(Source::parse(&format!("header:{name}"))?))
            }
            (None, Some(name), None, None, None, None) => Ok(Place::Once(Source::Query(name.clone()))),
            (None, None, Some(name), None, None, None) => Ok(Place::Once(Source::Form(name.clone()))),
            (None, None, None, Some(path), None, None) => {
                Ok(Place::Once(Source::Json(JsonPath::parse_one(path)?)))
            }
            (None, None, None, None, Some(items), Some(path)) => {
                Ok(Place::PerItem { items: JsonPath::parse(items)?, signature: JsonPath::parse_one(path)? })
            }
            _ => Err(WANTED.to_owned()),
        }
    }

    fn format(&self) -> Result<Format, String> {
        let text = match &self.format {
            Some(text) => text,
            None if !self.scheme.signs() => "{token}",
            None => return Err("`format` is missing; for example \"sha256={hex}\"".to_owned()),
        };
        Format::parse(text, self.separator)
    }

    fn signed(&self) -> Result<Vec<Template>, String> {
        match &self.signed {
            None => Ok(Vec::new()),
            Some(OneOrMany::One(text)) => Ok(vec![Template::parse(text)?]),
            Some(OneOrMany::Many(texts)) => texts.iter().map(|text| Template::parse(text)).collect(),
        }
    }
}

impl Method {
    fn consistent(&self) -> Result<(), String> {
        let signs = self.scheme.signs();
        if signs == self.signed.is_empty() {
            let wrong =
                if signs { "`signed` is missing" } else { "this scheme signs nothing: `signed` has no use" };
            return Err(wrong.to_owned());
        }
        let stamped = self.stamp.source.is_some() || self.format.has_timestamp();
        if !stamped && self.signed.iter().any(Template::has_timestamp) {
            return Err(
                "`signed` holds {timestamp}, and nothing says where it is: give `timestamp`".to_owned()
            );
        }
        if self.stamp.source.is_some() && self.format.has_timestamp() {
            return Err("both `timestamp` and `format` say where the timestamp is".to_owned());
        }
        // A stamp that isn't signed can be written by anyone; a whole body may hold it.
        let proven = |text: &Template| {
            text.has_timestamp() || (matches!(self.stamp.source, Some(Source::Json(_))) && text.has_body())
        };
        if self.stamp.tolerance.is_some()
            && self.scheme != Scheme::JwtHs256
            && !self.signed.iter().all(proven)
        {
            return Err("`tolerance` needs a {timestamp} that is signed".to_owned());
        }
        let per_item = matches!(self.place, Place::PerItem { .. });
        if !per_item && self.signed.iter().any(Template::has_item) {
            return Err("{item:…} needs `items` and `item`".to_owned());
        }
        Ok(())
    }
}

/// `"300s"`, `"5m"`, `"3h"`, `"1d"`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` should be a number and s, m, h or d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}
