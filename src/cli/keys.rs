//! `umavez keys`: the event keys of one recorded delivery, without a gateway.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::Serialize;
use umavez::config::{Config, RouteConfig, Scope};
use umavez::flow::RouteTable;
use umavez::flow::body::decoded;
use umavez::ledger::EventKey;
use umavez::providers::{Delivery, ItemRules, Provider};

use super::providers::BuiltIn;
use super::{Failure, environment, print};

/// Longest recorded file that is read, bytes.
pub(super) const FILE_BYTES_MAX: usize = 256 * 1024 * 1024;

const EXAMPLES: &str = "\
Examples:
  umavez keys --provider hotmart --headers purchase.headers --body purchase.body
  umavez keys --route whatsapp --config umavez.toml --headers batch.headers --body batch.body
  umavez keys --provider twilio --request 'POST https://hooks.example.com/twilio?a=1' --headers h --body b

One JSON line per item: {\"item\":\"…\",\"parts\":[\"…\"],\"key\":\"scope:…\"}, or, where an item has no key,
{\"item\":\"…\",\"parts\":null,\"why\":\"…\"}. Nothing for a delivery without items. A Content-Encoding is undone. Signatures are not checked.";

/// Print the event keys of one recorded delivery
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Keys {
    /// A provider that is built in; its name is the scope
    #[arg(long, value_name = "NAME", required_unless_present = "route", conflicts_with = "route",
        value_parser = BuiltIn, hide_possible_values = true)]
    provider: Option<String>,
    /// A route of the configuration file
    #[arg(long, value_name = "NAME", requires = "config")]
    route: Option<String>,
    /// The configuration file; with --provider, for its providers_dir
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How it was sent [default: POST https://hooks.example.com/hooks/PROVIDER, or the route's path]
    #[arg(long, value_name = "METHOD URL")]
    request: Option<String>,
    /// Its headers, one `Name: value` a line
    #[arg(long, value_name = "FILE")]
    headers: PathBuf,
    /// Its body, byte for byte
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
}

/// Whose rules to read the delivery by.
pub(super) struct Rules {
    pub(super) items: ItemRules,
    pub(super) scope: Scope,
    pub(super) provider: Option<Arc<Provider>>,
    /// Where the default request goes.
    url: String,
    /// For the route's path parameters.
    routes: Option<(RouteTable, usize)>,
}

impl Rules {
    /// The values of the route's path; `None` where the request is not the route's.
    pub(super) fn path_params(&self, method: &Method, url: &Uri) -> Option<Vec<(String, String)>> {
        let Some((table, index)) = &self.routes else { return Some(Vec::new()) };
        let found = table.find(method, url.host(), url.path()).filter(|found| found.index == *index);
        found.map(|found| found.path_params)
    }

    /// How a delivery of these rules was sent, where nobody says.
    pub(super) fn default_request(&self) -> String {
        format!("POST {}", self.url)
    }
}

#[derive(Serialize)]
struct Line<'a> {
    item: String,
    parts: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Keys {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let rules = self.rules()?;
        let (method, url) = self.request(&rules)?;
        let headers = parse_headers(&self.headers, &read(&self.headers)?)?;
        let body = Bytes::from(read(&self.body)?);
        let path_params = rules.path_params(&method, &url).ok_or_else(|| {
            let name = self.route.as_deref().unwrap_or_default();
            Failure::Usage(format!("--request: {method} {url} is not the route {name:?}'s; write its path"))
        })?;
        let decoded = decoded(&headers, &body, FILE_BYTES_MAX).map_err(|error| {
            Failure::Usage(format!("{}: the body cannot be decoded: {error}", self.body.display()))
        })?;
        let text = url.to_string();
        let delivery = Delivery {
            method: &method,
            url: &text,
            headers: &headers,
            path_params: &path_params,
            raw_body: &body,
            body: &decoded,
        };
        let scope = rules.scope.fill(&path_params);
        let mut out = String::new();
        for item in rules.items.items(&delivery).list {
            let key = item.parts.as_ref().map(|parts| EventKey::new(&scope, parts));
            let line = Line {
                item: item.place(),
                parts: item.parts.as_ref().ok().map(|parts| parts.iter().map(|part| shown(part)).collect()),
                key: key.as_ref().ok().map(EventKey::text),
                why: item.parts.as_ref().err().map(ToString::to_string),
            };
            out.push_str(&serde_json::to_string(&line).context("cannot write JSON")?);
            out.push('\n');
        }
        print(&out)
    }

    fn rules(&self) -> Result<Rules, Failure> {
        let rules = rules(self.route.as_deref(), self.provider.as_deref(), self.config.as_deref())?;
        let needed = || Failure::Usage("keys needs --provider, or --route and --config".to_owned());
        rules.ok_or_else(needed)
    }

    fn request(&self, rules: &Rules) -> Result<(Method, Uri), Failure> {
        let default = rules.default_request();
        parse_request("--request", self.request.as_deref().unwrap_or(&default))
    }
}

/// The rules of a route, or of a provider; `None` where neither is named.
pub(super) fn rules(
    route: Option<&str>,
    provider: Option<&str>,
    config: Option<&Path>,
) -> Result<Option<Rules>, Failure> {
    let routes = match config {
        Some(path) => Config::load_routes(path, &environment())?,
        None => Vec::new(),
    };
    match (route, provider) {
        (Some(route), _) => route_rules(&routes, route).map(Some),
        (None, Some(name)) => provider_rules(name, &routes).map(Some),
        (None, None) => Ok(None),
    }
}

/// Reads `METHOD URL`.
pub(super) fn parse_request(whence: &str, written: &str) -> Result<(Method, Uri), Failure> {
    let parsed = written.split_once(' ').and_then(|(method, url)| {
        let url: Uri = url.trim().parse().ok().filter(|url: &Uri| url.host().is_some())?;
        Some((Method::from_bytes(method.as_bytes()).ok()?, url))
    });
    let mend = "write such as 'POST https://hooks.example.com/path?query'";
    parsed.ok_or_else(|| Failure::Usage(format!("{whence}: {written:?} is no request; {mend}")))
}

fn route_rules(routes: &[Arc<RouteConfig>], name: &str) -> Result<Rules, Failure> {
    let Some(index) = routes.iter().position(|route| &*route.name == name) else {
        let names: Vec<&str> = routes.iter().map(|route| &*route.name).collect();
        let names = names.join(", ");
        return Err(Failure::Usage(format!("--route: there is no route {name:?}; the file has {names}")));
    };
    let route = &routes[index];
    let table = RouteTable::new(routes)
        .map_err(|_| Failure::Usage("two routes match the same requests".to_owned()))?;
    Ok(Rules {
        items: route.items.clone(),
        scope: route.scope.clone(),
        provider: route.provider.clone(),
        url: format!(
            "https://{}{}",
            route.host.as_deref().unwrap_or("hooks.example.com"),
            route.path.0.replace(['{', '}', '*'], "")
        ),
        routes: Some((table, index)),
    })
}

fn provider_rules(name: &str, routes: &[Arc<RouteConfig>]) -> Result<Rules, Failure> {
    let own = routes.iter().filter_map(|route| route.provider.clone()).find(|provider| provider.name == name);
    let provider = own.or_else(|| Provider::shipped(name)).ok_or_else(|| {
        Failure::Usage(format!("--provider: there is no provider {name:?}; `umavez providers` lists them"))
    })?;
    Ok(Rules {
        items: provider.rules.clone(),
        scope: Scope(name.to_owned()),
        provider: Some(Arc::clone(&provider)),
        url: format!("https://hooks.example.com/hooks/{name}"),
        routes: None,
    })
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if usize::try_from(metadata.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        return Err(wrong("is longer than 256MiB".to_owned()));
    }
    std::fs::read(path).map_err(|error| wrong(error.to_string()))
}

/// Reads `Name: value` lines; values may hold any byte that a header may.
pub(super) fn parse_headers(path: &Path, text: &[u8]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |what: &str| {
            Failure::Usage(format!("{}:{}:1: {what}; write `Name: value`", path.display(), index + 1))
        };
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(|| wrong("has no colon"))?;
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name).map_err(|_| wrong("does not start with a header's name"))?;
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let value = HeaderValue::from_bytes(value).map_err(|_| wrong("holds what no header may"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// A part for people: bytes that are not UTF-8 as `\xNN`, as in the key's text.
pub(super) fn shown(part: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(part.len());
    for chunk in part.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("a String takes any text");
        }
    }
    text
}
