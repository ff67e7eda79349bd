//! Reads captures: three files each, of which the request may be missing.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use umavez::flow::body::decoded;
use umavez::providers::Delivery;

use super::super::Failure;
use super::super::keys::{self, FILE_BYTES_MAX, Rules};

/// How a delivery was sent, where neither a file nor a rule says.
const REQUEST: &str = "POST https://hooks.example.com/";

/// One event and what was captured of it.
pub(super) struct Event {
    pub(super) captures: Vec<Capture>,
}

/// One delivery.
pub(super) struct Capture {
    /// The path without an ending, as given.
    pub(super) name: String,
    pub(super) method: Method,
    pub(super) url: String,
    /// Whether a file said so.
    pub(super) sent_known: bool,
    pub(super) path_params: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    raw: Bytes,
    pub(super) body: Bytes,
}

impl Capture {
    pub(super) fn read(path: &Path, rules: Option<&Rules>) -> Result<Self, Failure> {
        let given = path.to_str().ok_or_else(|| {
            Failure::Usage(format!("{}: the name is no UTF-8; rename the files", path.display()))
        })?;
        let endings = [".headers", ".body", ".request"];
        let name = endings.iter().find_map(|ending| given.strip_suffix(ending)).unwrap_or(given);
        let file = |ending: &str| std::path::PathBuf::from(format!("{name}{ending}"));
        if path.is_dir() {
            return Err(Failure::Usage(format!("{given}: is a folder; name a capture in it")));
        }
        for ending in [".headers", ".body"] {
            let file = file(ending);
            if !file.exists() {
                let mend = "a capture is NAME.headers and NAME.body, and is named by NAME";
                return Err(Failure::Usage(format!("{}: there is no such file; {mend}", file.display())));
            }
        }
        let headers = keys::parse_headers(&file(".headers"), &keys::read(&file(".headers"))?)?;
        let raw = Bytes::from(keys::read(&file(".body"))?);
        let body = decoded(&headers, &raw, FILE_BYTES_MAX)
            .map_err(|error| Failure::Usage(format!("{name}.body: the body cannot be decoded: {error}")))?;
        let sent_known = file(".request").exists();
        let (method, url) = sent(&file(".request"), sent_known, rules)?;
        let path_params = match rules {
            Some(rules) => rules.path_params(&method, &url).ok_or_else(|| {
                let mend = "give a capture of that route, or check another";
                Failure::Usage(format!("{name}: {method} {url} is not the route's; {mend}"))
            })?,
            None => Vec::new(),
        };
        let url = url.to_string();
        Ok(Self { name: name.to_owned(), method, url, sent_known, path_params, headers, raw, body })
    }

    pub(super) fn delivery(&self) -> Delivery<'_> {
        Delivery {
            method: &self.method,
            url: &self.url,
            headers: &self.headers,
            path_params: &self.path_params,
            raw_body: &self.raw,
            body: &self.body,
        }
    }

    /// The path that it came to.
    pub(super) fn path(&self) -> &str {
        let after_host = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let path = after_host.find('/').map_or("/", |at| after_host.split_at(at).1);
        path.split(['?', '#']).next().unwrap_or("/")
    }
}

fn sent(file: &Path, there: bool, rules: Option<&Rules>) -> Result<(Method, Uri), Failure> {
    if !there {
        let default = rules.map_or_else(|| REQUEST.to_owned(), Rules::default_request);
        return keys::parse_request("the request", &default);
    }
    let shown = file.display().to_string();
    let text = String::from_utf8(keys::read(file)?)
        .map_err(|_| Failure::Usage(format!("{shown}: is no text; write METHOD URL")))?;
    keys::parse_request(&shown, text.trim_end())
}
