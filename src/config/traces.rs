//! `[traces]`: where spans go, and of which requests there are any. Off where no endpoint is named.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use toml::de::DeValue;

use super::problem::Fault;
use super::route::choice;
use super::secret::Secret;
use super::sections::{MINUTE, SECOND, target};
use super::source::{Field, Section, article};
use super::{Target, fields, tls};
use crate::tls::AppFiles;

/// Headers and resource attributes, each.
const PAIRS_MAX: usize = 64;

const PARENTS: [(&str, Parent); 3] =
    [("trusted_proxies", Parent::TrustedProxies), ("anyone", Parent::Anyone), ("nobody", Parent::Nobody)];
const PATHS: [(&str, Paths); 2] = [("patterns", Paths::Patterns), ("whole", Paths::Whole)];

/// Where spans go, and which requests they are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// The collector, less `/v1/traces`: OTLP over HTTP, protobuf. Its files are those of `ca`, if that is set.
    pub endpoint: Target,
    pub headers: Vec<(HeaderName, Secret)>,
    /// How long the collector may take to answer.
    pub timeout: Duration,
    /// The share of traces that begin here of which spans are made; 0 to 1.
    pub sample_ratio: f64,
    pub parent: Parent,
    pub paths: Paths,
    pub service_name: String,
    /// What else is told of this process.
    pub resource: Vec<(String, String)>,
}

/// Whose `traceparent` is taken as the parent, its decision about sampling included. From anybody else it is a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parent {
    #[default]
    TrustedProxies,
    Anyone,
    Nobody,
}

/// What spans tell of paths: placeholders of a route, and paths of no route, may hold tokens and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paths {
    /// A route's pattern; nothing of what passes through.
    #[default]
    Patterns,
    /// As they came, less the query.
    Whole,
}

pub(super) fn read(top: &Section<'_>) -> Option<Traces> {
    let section = top.section("traces", fields::TRACES);
    let endpoint = section.field("endpoint");
    let ca = section.field("ca").and_then(|field| tls::ca(&field));
    let files = ca.map(|ca| Arc::new(AppFiles { ca: Some(ca), client: None }));
    let traces = Traces {
        headers: section.field("headers").map(|field| headers(&field)).unwrap_or_default(),
        timeout: section.duration("timeout", SECOND / 10..=MINUTE).unwrap_or(10 * SECOND),
        sample_ratio: section.field("sample_ratio").and_then(|field| ratio(&field)).unwrap_or(1.0),
        parent: choice(&section, "parent", &PARENTS).unwrap_or_default(),
        paths: choice(&section, "paths", &PATHS).unwrap_or_default(),
        service_name: section
            .field("service_name")
            .and_then(|field| service_name(&field))
            .unwrap_or_else(|| "umavez".to_owned()),
        resource: section.field("resource").and_then(|field| resource(&field)).unwrap_or_default(),
        endpoint: Target { files, ..target(endpoint.as_ref()?)? },
    };
    if let Some(endpoint) = endpoint.filter(|_| traces.endpoint.prefix.ends_with("/v1/traces")) {
        endpoint.fail("ends with /v1/traces, which is added to it", "leave that out");
    }
    if traces.parent == Parent::Anyone {
        let risk = "whoever sends a traceparent decides which requests are sampled, and puts them into traces of \
                    their choice";
        section.warn("parent", risk);
    }
    Some(traces)
}

/// `{ Authorization = "${NAME}", … }`
fn headers(field: &Field<'_>) -> Vec<(HeaderName, Secret)> {
    let mend = "write such as { Authorization = \"${OTLP_AUTHORIZATION}\" }";
    let Some(table) = field.value.as_table() else {
        field.fail(format!("is {}, not a table", article(field.value)), mend);
        return Vec::new();
    };
    if table.len() > PAIRS_MAX {
        field.fail(format!("holds {} headers", table.len()), format!("at most {PAIRS_MAX} fit"));
        return Vec::new();
    }
    let one = |(name, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
        let written = name.get_ref();
        let field = Field {
            source: field.source,
            name: format!("{}.{written}", field.name),
            span: value.span(),
            value: value.get_ref(),
        };
        let Ok(name) = HeaderName::from_bytes(written.as_bytes()) else {
            field.fail("no header has such a name", mend);
            return None;
        };
        let secret = field.secret()?;
        if HeaderValue::from_str(secret.expose()).is_err() {
            field.fail("holds characters that no header may", "write it in one line of visible characters");
            return None;
        }
        Some((name, secret))
    };
    table.iter().filter_map(one).collect()
}

fn ratio(field: &Field<'_>) -> Option<f64> {
    let written = match field.value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::Integer(number) => number.as_str().parse().ok(),
        DeValue::String(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => None,
    };
    let ratio = written.filter(|ratio| (0.0..=1.0).contains(ratio));
    if ratio.is_none() {
        field.fail("is no share", "write a number from 0 to 1, such as 0.01 for one trace of a hundred");
    }
    ratio
}

fn service_name(field: &Field<'_>) -> Option<String> {
    let name = field.expanded()?.text;
    if name.trim().is_empty() || name.len() > 255 {
        field.fail("is no name of a service", "write 1 to 255 characters, or leave it out");
        return None;
    }
    Some(name)
}

/// `name=value,name=value`, as the environment variable `OTEL_RESOURCE_ATTRIBUTES` is written.
fn resource(field: &Field<'_>) -> Option<Vec<(String, String)>> {
    let text = field.expanded()?.text;
    let pairs: Option<Vec<_>> = text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair).collect();
    match pairs {
        Some(pairs) if pairs.len() <= PAIRS_MAX => Some(pairs),
        Some(_) | None => {
            let fault = Fault::new(
                format!("is no list of at most {PAIRS_MAX} attributes"),
                "write such as \"deployment.environment.name=production,k8s.pod.name=${POD}\", %-encoded where need be",
            );
            field.report(fault);
            None
        }
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let decoded =
        |text: &str| percent_decode_str(text.trim()).decode_utf8().ok().map(|text| text.into_owned());
    Some((decoded(name).filter(|name| !name.is_empty())?, decoded(value)?))
}
