//! One `[[route]]`: its fields, its provider's presets, and the limits that must not contradict each other.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use toml::de::DeTable;

use super::pattern::{RoutePath, Scope, parse_host, parse_name};
use super::problem::Fault;
use super::sections::{DAY, HOUR, MIB, SECOND, nowhere, own_upstream, unknown_word};
use super::source::{Field, Section, Source};
use super::status::{StatusSet, parse_statuses};
use super::{
    DuplicateAnswer, HandshakeBy, Limits, Mode, OnDurableDown, OnKeyless, OnUnsigned, RouteConfig, Target,
    capture, credentials, fields, handshake, key, providers, risk, tls, units,
};
use crate::ledger::{OnUnknown, Terms};
use crate::providers::Provider;

/// So many of the longest bodies must have room at once: one as it came and decompressed, and what is for short ones.
const BODIES_MIN: usize = 3;
const MILLISECOND: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(60);
/// What a lease has beyond the timeout unless set: for settling, and for a store that is slow for a while.
const LEASE_BEYOND_TIMEOUT: Duration = Duration::from_secs(30);
/// A lease with less than this beyond the timeout is warned of.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(8);
const HOT_TTL: Duration = Duration::from_secs(72 * 3600);
const DURABLE_TTL: Duration = Duration::from_secs(8 * 86_400);
const TTL_MAX: Duration = Duration::from_secs(3650 * 86_400);
/// What a route may refer to outside its own table.
pub(super) struct Around<'a> {
    pub(super) providers: &'a providers::Known,
    pub(super) public: std::net::SocketAddr,
    pub(super) upstream: Option<&'a Target>,
    /// Where there is no `upstream` because of what is wrong there, which is reported.
    pub(super) upstream_is_wrong: bool,
    pub(super) limits: &'a Limits,
    /// Whether callers can present certificates at all.
    pub(super) client_certificates: bool,
}

/// Reads the route at `table`, the `number`th of the file. `None` where it is so wrong that there is no route;
/// what is wrong is reported either way.
pub(super) fn read<'a>(
    source: &'a Source<'a>,
    table: &'a DeTable<'a>,
    span: std::ops::Range<usize>,
    number: usize,
    around: &Around<'_>,
) -> Option<RouteConfig> {
    let label = match table.get("name").and_then(|name| name.get_ref().as_str()) {
        Some(name) => format!("route {name:?}"),
        None => format!("route {number}"),
    };
    let route = Section::open(source, label, Some(table), span, fields::ROUTE);

    let name = required(&route, "name", "name it: metrics, logs and keys show the name", parse_name);
    let path = required(&route, "path", "write the path that the provider calls", RoutePath::parse);
    path.iter().for_each(|path| risk::warn_of_path(&route, path));
    let host = route.parsed("host", parse_host);
    let provider = provider(&route, around.providers);
    let items = key::items(&route, provider.as_deref(), path.as_ref());
    let scope = match route.field("scope") {
        Some(field) => field.parsed(|text| Scope::parse(text, path.as_ref())),
        None => name.clone().map(Scope),
    };
    let credentials = credentials::read(&route, provider.as_deref());
    credentials::warn_of_unsigned_parts(&route, provider.as_deref(), items.as_ref(), scope.as_ref());
    let (handshake, verify_tokens) = handshake::read(&route, provider.as_deref());
    let upstream = match route.field("upstream") {
        Some(field) => own_upstream(&field),
        None => around.upstream.cloned().or_else(|| nowhere(route.source)).or_else(|| {
            if !around.upstream_is_wrong && !route.misspells("upstream") {
                let mend = "write [upstream] url = \"http://host:port\", or the route's own upstream";
                route.fail("upstream", Fault::new("is missing, and there is no [upstream] url", mend));
            }
            None
        }),
    };
    if route.field("upstream").is_some() {
        risk::warn_of_loop(&route, "upstream", upstream.as_ref(), around.public);
    }
    let times = times(&route, provider.as_deref());
    let receipt_limit = route.size("receipt_limit", 0..=16 * MIB).unwrap_or(64 * 1024);
    if receipt_limit > around.limits.answer_bytes_max {
        let fault = Fault::new("is above limits.answer_bytes_max", "lower it, or raise the other");
        route.fail("receipt_limit", fault);
    }
    let body_limit = route.size("body_limit", 1..=1024 * MIB).unwrap_or(25 * MIB);
    let mode = choice(&route, "mode", &MODES).unwrap_or_default();
    let read = RouteConfig {
        mode,
        methods: methods(&route),
        host,
        secrets: credentials.secrets,
        public_key: credentials.public_key,
        webhook_id: credentials.webhook_id,
        public_url: route.parsed("public_url", parse_public_url),
        client_names: tls::client_names(&route, around.client_certificates),
        timeout: times.timeout,
        terms: times.terms,
        in_flight_wait: times.in_flight_wait,
        in_flight_answer: in_flight_answer(&route, provider.as_deref()),
        body_limit,
        body_timeout: around.limits.body_timeout,
        answer_bytes_max: around.limits.answer_bytes_max,
        buffered_bytes_max: around.limits.buffered_bytes_max.max(body_limit.saturating_mul(BODIES_MIN)),
        done: done(&route, provider.as_deref()),
        on_keyless: choice(&route, "on_keyless", &ON_KEYLESS).unwrap_or_default(),
        on_unsigned: choice(&route, "on_unsigned", &ON_UNSIGNED).unwrap_or_default(),
        on_durable_down: on_durable_down(&route, times.terms.on_unknown),
        handshake,
        verify_tokens,
        receipt_limit,
        receipt_headers: headers(&route, "receipt_headers", &[]),
        duplicate_answer: duplicate_answer(&route, provider.as_deref(), receipt_limit),
        strip_headers: headers(&route, "strip_headers", providers::strip_headers(provider.as_deref())),
        capture: capture::read(&route),
        // What there is no route without comes last, so that everything else has been read by then.
        items: items?,
        scope: scope?,
        upstream: upstream?,
        name: name?.into(),
        path: path?,
        provider,
    };
    match mode {
        Mode::Inline => {
            risk::warn_of_route(&route, &read);
            Some(read)
        }
        Mode::Shadow => Some(shadow(&route, read)),
    }
}

/// In shadow everything is forwarded as it came: what would hold, refuse, answer or take away gives way until the
/// route's mode changes.
fn shadow(route: &Section<'_>, written: RouteConfig) -> RouteConfig {
    route.warn("mode", "in shadow: verdicts are counted, and every copy is forwarded");
    RouteConfig {
        terms: Terms { on_unknown: OnUnknown::Retry, ..written.terms },
        on_keyless: OnKeyless::Forward,
        on_durable_down: OnDurableDown::Reject,
        handshake: HandshakeBy::App,
        strip_headers: Vec::new(),
        ..written
    }
}

const MODES: [(&str, Mode); 2] = [("inline", Mode::Inline), ("shadow", Mode::Shadow)];

const IN_FLIGHT_ANSWERS: [(&str, StatusCode); 2] =
    [("503", StatusCode::SERVICE_UNAVAILABLE), ("409", StatusCode::CONFLICT)];
const ON_KEYLESS: [(&str, OnKeyless); 2] = [("forward", OnKeyless::Forward), ("reject", OnKeyless::Reject)];
const ON_UNSIGNED: [(&str, OnUnsigned); 2] =
    [("401", OnUnsigned::Unauthorized), ("200", OnUnsigned::AcceptAndDrop)];
const ON_UNKNOWN: [(&str, OnUnknown); 2] = [("retry", OnUnknown::Retry), ("hold", OnUnknown::Hold)];
const ON_DURABLE_DOWN: [(&str, OnDurableDown); 3] = [
    ("reject", OnDurableDown::Reject),
    ("hot_only", OnDurableDown::HotOnly),
    ("bypass", OnDurableDown::Bypass),
];

fn required<T>(
    route: &Section<'_>,
    field: &'static str,
    mend: &str,
    parse: impl FnOnce(&str) -> Result<T, Fault>,
) -> Option<T> {
    if route.field(field).is_none() && !route.misspells(field) {
        route.fail(field, Fault::new("is missing", mend));
    }
    route.parsed(field, parse)
}

/// A word (or number) of a closed set.
pub(super) fn choice<T: Copy>(route: &Section<'_>, field: &'static str, choices: &[(&str, T)]) -> Option<T> {
    let field = route.field(field)?;
    let written = field.word()?;
    let found = choices.iter().find(|(word, _)| *word == written).map(|(_, value)| *value);
    if found.is_none() {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        field.report(unknown_word(&written, &words));
    }
    found
}

fn in_flight_answer(route: &Section<'_>, provider: Option<&Provider>) -> StatusCode {
    let answer = choice(route, "in_flight_answer", &IN_FLIGHT_ANSWERS);
    let answer = answer.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if let Some(provider) = provider
        && provider.final_statuses.iter().any(|range| range.contains(&answer.as_u16()))
    {
        let (name, status) = (&provider.name, answer.as_u16());
        let text = format!("{name} never sends again after {status}: it is answered 503");
        route.warn("in_flight_answer", text);
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    answer
}

fn on_durable_down(route: &Section<'_>, on_unknown: OnUnknown) -> OnDurableDown {
    let chosen = choice(route, "on_durable_down", &ON_DURABLE_DOWN).unwrap_or_default();
    match (chosen, on_unknown) {
        (OnDurableDown::Reject, _) | (_, OnUnknown::Retry) => {}
        (OnDurableDown::HotOnly | OnDurableDown::Bypass, OnUnknown::Hold) => {
            let what = "goes against on_unknown = \"hold\": what is held is stored in the durable store";
            let mend = "write on_durable_down = \"reject\", or on_unknown = \"retry\"";
            route.fail("on_durable_down", Fault::new(what, mend));
        }
    }
    chosen
}

fn provider(route: &Section<'_>, known: &providers::Known) -> Option<Arc<Provider>> {
    let field = route.field("provider")?;
    if field.value.as_str().is_some_and(|name| known.is_wrong(name)) {
        return None;
    }
    field.parsed(|name| known.find(name))
}

/// The durations of a route, which bound each other.
struct Times {
    timeout: Duration,
    in_flight_wait: Duration,
    terms: Terms,
}

fn times(route: &Section<'_>, provider: Option<&Provider>) -> Times {
    let show = units::show_duration;
    let timeout = route.duration("timeout", 10 * MILLISECOND..=HOUR).unwrap_or(TIMEOUT);
    let lease = route.duration("lease", 20 * MILLISECOND..=DAY);
    let in_flight_wait = route.duration("in_flight_wait", Duration::ZERO..=HOUR);
    let hot = route.duration("hot_ttl", SECOND..=TTL_MAX);
    let durable = route.duration("durable_ttl", SECOND..=TTL_MAX);

    if let Some(lease) = lease {
        let mend = format!("write a lease above {}, or leave it out", show(timeout));
        if lease <= timeout {
            let what = format!("{} is not longer than the timeout of {}", show(lease), show(timeout));
            route.fail("lease", Fault::new(what, mend));
        } else if lease - timeout < LEASE_MARGIN && lease - timeout < timeout {
            let text = format!(
                "is only {} longer than the timeout: a slow settlement loses its claim",
                show(lease - timeout)
            );
            route.warn("lease", text);
        }
    }
    if in_flight_wait.is_some_and(|wait| wait >= timeout) {
        let what = format!("is not shorter than the timeout of {}", show(timeout));
        route.fail("in_flight_wait", Fault::new(what, "write less, or raise the timeout"));
    }
    let preset = providers::windows(provider);
    let hot_ttl = hot.or(preset.hot_ttl).unwrap_or(HOT_TTL);
    let durable_ttl = durable.or(preset.durable_ttl).unwrap_or(DURABLE_TTL);
    if durable.is_some() && hot_ttl > durable_ttl {
        let text = format!(
            "{} is below the hot_ttl of {} and counts as that: the durable store never forgets first",
            show(durable_ttl),
            show(hot_ttl)
        );
        route.warn("durable_ttl", text);
    }
    let lease = lease.unwrap_or(timeout + LEASE_BEYOND_TIMEOUT);
    let durable_ttl = durable_ttl.max(hot_ttl);
    if durable_ttl <= lease {
        let text = format!(
            "{} is not longer than the lease of {}: an event that takes as long is forgotten as soon as it is done",
            show(durable_ttl),
            show(lease)
        );
        route.warn("durable_ttl", text);
    }
    // A wait that nobody wrote gives way to a short timeout.
    let wait = preset.in_flight_wait.unwrap_or(IN_FLIGHT_WAIT);
    let in_flight_wait = in_flight_wait.unwrap_or(if wait >= timeout { timeout / 2 } else { wait });
    let on_unknown = choice(route, "on_unknown", &ON_UNKNOWN).unwrap_or_default();
    Times { timeout, in_flight_wait, terms: Terms { lease, hot_ttl, durable_ttl, on_unknown } }
}

fn methods(route: &Section<'_>) -> Option<Vec<Method>> {
    let field = route.field("method")?;
    let parse = |text: &str| {
        let method = Method::from_bytes(text.as_bytes());
        method.ok().filter(|_| text.bytes().all(|byte| !byte.is_ascii_lowercase())).ok_or_else(|| {
            Fault::new(format!("{text:?} is no method"), "write such as \"POST\", in capitals")
        })
    };
    let methods: Vec<Method> =
        field.one_or_list().iter().filter_map(|element| element.parsed(parse)).collect();
    if methods.is_empty() && field.value.as_array().is_some_and(|array| array.is_empty()) {
        field.fail("the list is empty", "name a method, or leave it out");
    }
    risk::warn_of_methods(route, &methods);
    Some(methods)
}

fn done(route: &Section<'_>, provider: Option<&Provider>) -> StatusSet {
    let Some(field) = route.field("done") else { return providers::done(provider) };
    let parse = |element: &Field<'_>| match parse_statuses(&element.word()?) {
        Ok(range) => Some(range),
        Err(fault) => {
            element.report(fault);
            None
        }
    };
    let elements = field.one_or_list();
    if elements.is_empty() {
        field
            .fail("the list is empty: no answer would ever end an event", "write [\"2xx\"], or leave it out");
    }
    StatusSet(elements.iter().filter_map(parse).collect())
}

/// A list of header names, or `preset` where the field is absent.
fn headers(route: &Section<'_>, field: &'static str, preset: &[HeaderName]) -> Vec<HeaderName> {
    const HOP_BY_HOP: [&str; 7] =
        ["connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "host"];
    let Some(field) = route.field(field) else { return preset.to_vec() };
    let parse = |text: &str| {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
            Fault::new(format!("{text:?} is no header name"), "write such as \"X-Request-Id\"")
        })?;
        if HOP_BY_HOP.contains(&name.as_str()) {
            return Err(Fault::new(format!("{name} belongs to the connection"), "leave it out"));
        }
        Ok(name)
    };
    field.list().unwrap_or_default().iter().filter_map(|element| element.parsed(parse)).collect()
}

fn parse_public_url(text: &str) -> Result<String, Fault> {
    let uri = text.parse::<http::Uri>().ok();
    let fits = uri
        .is_some_and(|uri| uri.authority().is_some() && matches!(uri.scheme_str(), Some("http" | "https")));
    if !fits {
        let mend = "write the whole URL as the provider has it, such as \"https://hooks.example.com/twilio\"";
        return Err(Fault::new("is no absolute URL", mend));
    }
    Ok(text.to_owned())
}

fn duplicate_answer(
    route: &Section<'_>,
    provider: Option<&Provider>,
    receipt_limit: usize,
) -> DuplicateAnswer {
    let Some(field) = route.field("duplicate_answer") else {
        return providers::duplicate_answer(provider, receipt_limit);
    };
    let Some(table) = field.value.as_table() else {
        if field.value.as_str() != Some("receipt") {
            field.fail("is no answer", "write \"receipt\", or { status = 200, body = \"…\" }");
        }
        return DuplicateAnswer::Receipt;
    };
    let answer = Section::open(
        field.source,
        field.name.clone(),
        Some(table),
        field.span.clone(),
        fields::DUPLICATE_ANSWER,
    );
    let status = answer.count("status", 200..=599).unwrap_or(200);
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let content_type = answer.parsed("content_type", |text| match http::HeaderValue::from_str(text) {
        Ok(_) if is_media_type(text) => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(Fault::new("is no media type", "write such as \"application/json\"")),
    });
    let body = answer.parsed("body", |text| Ok(text.to_owned())).unwrap_or_default();
    let status = status.unwrap_or(StatusCode::OK);
    risk::warn_of_copies_answer(&answer, provider, status, content_type.as_deref(), &body);
    DuplicateAnswer::Fixed { status, content_type, body: body.into() }
}

/// `type/subtype`, with parameters or without.
fn is_media_type(text: &str) -> bool {
    let essence = text.split(';').next().unwrap_or_default().trim();
    essence.split_once('/').is_some_and(|(kind, rest)| {
        !kind.is_empty() && !rest.is_empty() && essence.bytes().all(|byte| byte.is_ascii_graphic())
    })
}
