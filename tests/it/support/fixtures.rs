//! The committed deliveries of `tests/fixtures`: headers, body, and whose each is.

use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Which provider the fixtures of each first word belong to; the others are named as their provider is.
const FAMILIES: [(&str, &str); 7] = [
    ("graph", "microsoft-graph"),
    ("instagram", "meta"),
    ("messenger", "meta"),
    ("pubsub", "google-pubsub"),
    ("sns", "aws-sns"),
    ("standardwebhooks", "standard-webhooks"),
    ("whatsapp", "meta"),
];

/// One delivery.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Fixture {
    pub(crate) fn named(name: &str) -> Self {
        let path = folder().join(name);
        let text = std::fs::read(path.with_extension("headers")).unwrap();
        let mut headers = HeaderMap::new();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let colon = line.iter().position(|byte| *byte == b':').unwrap();
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            headers.append(HeaderName::from_bytes(name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        let body = std::fs::read(path.with_extension("body")).unwrap();
        Self { name: name.to_owned(), headers, body }
    }

    /// Every one, by name.
    pub(crate) fn all() -> Vec<Self> {
        let paths = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
        let is_headers = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "headers");
        let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<String> = paths.filter(is_headers).map(name).collect();
        names.sort();
        names.iter().map(|name| Self::named(name)).collect()
    }

    pub(crate) fn family(&self) -> &str {
        self.name.split('-').next().unwrap()
    }

    pub(crate) fn provider(&self) -> &str {
        let family = self.family();
        FAMILIES.iter().find(|(first, _)| *first == family).map_or(family, |(_, provider)| provider)
    }
}

/// What each delivery holds, and the fixtures' secrets: `EXPECT.md`.
pub(crate) fn expected() -> String {
    std::fs::read_to_string(folder().join("EXPECT.md")).unwrap()
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}
