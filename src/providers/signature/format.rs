//! How a signature's value is written: `sha256={hex}`, `t={timestamp},v1={hex}`, a list of `v1,{base64}`. Reads such
//! values and writes them again.

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Longer values are no signature; bounds the work that a hostile one can cause.
const VALUE_BYTES_MAX: usize = 8 * 1024;
/// More are no rotation; bounds how many public-key checks one value can cause.
const SIGNATURES_MAX: usize = 16;

pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Between fields; `None` where the value is one field.
    separator: Option<char>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    prefix: String,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Timestamp,
    Signature(Encoding),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Hex,
    Base64,
    /// Hex where it has a digest's length in hex, else base64.
    Either,
    /// The bytes themselves.
    Text,
}

/// A value, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written<'a> {
    pub(super) timestamp: Option<&'a str>,
    /// Never empty.
    pub(super) signatures: Vec<&'a str>,
}

impl Format {
    pub(super) fn parse(text: &str, separator: Option<char>) -> Result<Self, String> {
        let mut separator = separator;
        let mut fields: Vec<Field> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (literal, name, after) = rest
                .split_once('{')
                .and_then(|(literal, tail)| tail.split_once('}').map(|(name, after)| (literal, name, after)))
                .ok_or_else(|| format!("format `{text}` should end in a placeholder"))?;
            let mut prefix = literal;
            if !fields.is_empty() {
                let found = literal.chars().next();
                if *separator.get_or_insert(found.ok_or("two placeholders need a separator between them")?)
                    != found.unwrap_or_default()
                {
                    return Err(format!("format `{text}` separates its fields in different ways"));
                }
                prefix = literal.strip_prefix(|c| Some(c) == found).unwrap_or(literal).trim_start();
            }
            fields.push(Field { prefix: prefix.to_owned(), what: What::parse(name)? });
            rest = after;
        }
        let signatures = fields.iter().filter(|field| field.what != What::Timestamp).count();
        if signatures != 1 {
            return Err(format!(
                "format `{text}` should hold one of {{hex}}, {{base64}}, {{either}}, {{token}}"
            ));
        }
        Ok(Self { separator, fields })
    }

    pub(super) fn has_timestamp(&self) -> bool {
        self.fields.iter().any(|field| field.what == What::Timestamp)
    }

    /// Whether several signatures may stand side by side.
    pub(super) fn is_list(&self) -> bool {
        self.separator.is_some()
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.fields
            .iter()
            .find_map(|field| match field.what {
                What::Signature(encoding) => Some(encoding),
                What::Timestamp => None,
            })
            .expect("a format holds one signature")
    }

    /// `None` where the value isn't of this format. Fields of other names are skipped.
    pub(super) fn read<'a>(&self, value: &'a str) -> Option<Written<'a>> {
        if value.len() > VALUE_BYTES_MAX {
            return None;
        }
        let mut written = Written { timestamp: None, signatures: Vec::new() };
        let pieces = value.split(|c| Some(c) == self.separator).map(str::trim);
        for (field, rest) in pieces.filter_map(|piece| self.field(piece)) {
            match field.what {
                What::Timestamp if written.timestamp.replace(rest).is_some() => return None,
                What::Timestamp => {}
                What::Signature(_) => written.signatures.push(rest),
            }
        }
        let complete = written.timestamp.is_some() == self.has_timestamp();
        let bounded = (1..=SIGNATURES_MAX).contains(&written.signatures.len());
        (complete && bounded).then_some(written)
    }

    fn field<'p>(&self, piece: &'p str) -> Option<(&Field, &'p str)> {
        self.fields.iter().find_map(|field| Some((field, piece.strip_prefix(field.prefix.as_str())?)))
    }

    /// The value that holds these signatures, as the provider would write it.
    pub(super) fn write(&self, timestamp: Option<&str>, signatures: &[String]) -> String {
        let mut pieces = Vec::new();
        for field in &self.fields {
            match field.what {
                What::Timestamp => pieces.extend(timestamp.map(|stamp| format!("{}{stamp}", field.prefix))),
                What::Signature(_) => {
                    pieces.extend(signatures.iter().map(|text| format!("{}{text}", field.prefix)));
                }
            }
        }
        pieces.join(&self.separator.map(String::from).unwrap_or_default())
    }
}

impl What {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "timestamp" => Ok(Self::Timestamp),
            "hex" => Ok(Self::Signature(Encoding::Hex)),
            "base64" => Ok(Self::Signature(Encoding::Base64)),
            "either" => Ok(Self::Signature(Encoding::Either)),
            "token" => Ok(Self::Signature(Encoding::Text)),
            _ => {
                Err(format!("format holds `{{{name}}}`; known are timestamp, hex, base64, either and token"))
            }
        }
    }
}

impl Encoding {
    pub(super) fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => hex::decode(text).ok(),
            Self::Base64 => BASE64.decode(text).ok(),
            Self::Either => hex::decode(text).ok().or_else(|| BASE64.decode(text).ok()),
            Self::Text => Some(text.as_bytes().to_vec()),
        }
    }

    /// Written as `like` is, where that is free.
    pub(super) fn encode(self, bytes: &[u8], like: &str) -> String {
        match self {
            Self::Either if hex::decode(like).is_err() => BASE64.encode(bytes),
            Self::Hex | Self::Either => hex::encode(bytes),
            Self::Base64 => BASE64.encode(bytes),
            Self::Text => String::from_utf8_lossy(bytes).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_apart_and_written_again() {
        let table = [
            ("sha256={hex}", None, "sha256=ab", None, vec!["ab"]),
            ("{base64}", None, "q80=", None, vec!["q80="]),
            ("t={timestamp},v1={hex}", None, "t=5,v1=aa,v1=bb", Some("5"), vec!["aa", "bb"]),
            ("ts={timestamp};h1={hex}", None, "ts=5;h1=aa", Some("5"), vec!["aa"]),
            ("v1,{base64}", Some(' '), "v1,q80= v1,q81=", None, vec!["q80=", "q81="]),
        ];
        for (format, separator, value, timestamp, signatures) in table {
            let format = Format::parse(format, separator).unwrap();
            let written = format.read(value).unwrap();
            assert_eq!((written.timestamp, &written.signatures), (timestamp, &signatures), "{value}");
            let signatures: Vec<String> = signatures.into_iter().map(str::to_owned).collect();
            assert_eq!(format.write(timestamp, &signatures), value);
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_incomplete_values_refused() {
        let format = Format::parse("t={timestamp},v1={hex}", None).unwrap();
        assert_eq!(format.read("v0=cc, t=5,x, v1=aa").unwrap().signatures, ["aa"]);
        for value in ["", "t=5", "v1=aa", "t=5,t=6,v1=aa", "v1", ",,,,"] {
            assert_eq!(format.read(value), None, "{value}");
        }
        assert_eq!(format.read(&format!("t=5{}", ",v1=aa".repeat(17))), None);
        let list = Format::parse("v1,{base64}", Some(' ')).unwrap();
        assert_eq!(list.read("v1a,AA== v2,AA=="), None);
    }
}
