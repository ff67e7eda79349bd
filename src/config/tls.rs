//! `[public_tls]`, `[admin_tls]` and the apps' side of TLS. The files are read here too: a start, a check and a reload
//! all tell what is wrong with one at the field that names it.

use std::path::PathBuf;
use std::sync::Arc;

use super::problem::Fault;
use super::route::choice;
use super::source::{Field, Section};
use super::{RouteConfig, acme, fields};
use crate::clock::Clock;
use crate::tls::{
    Acme, AppFiles, Certificate, Clients, Files, ListenerFiles, Oldest, Pair, Trouble, is_server_name, roots,
};

/// Most certificates of one listener.
const CERTIFICATES_MAX: usize = 1000;

const CLIENT_AUTH: [(&str, bool); 2] = [("required", true), ("optional", false)];
const MIN_VERSION: [(&str, Oldest); 2] = [("1.2", Oldest::Tls12), ("1.3", Oldest::Tls13)];

pub(super) fn read(top: &Section<'_>, upstream: &Section<'_>) -> Files {
    let public = top.section("public_tls", fields::PUBLIC_TLS);
    Files {
        public: listener(&public, acme::read(&public)),
        admin: listener(&top.section("admin_tls", fields::TLS), None),
        app: app_files(upstream),
        own: Vec::new(),
        collector: None,
    }
}

/// What `[upstream]`, or a route's own, names to trust and to show.
pub(super) fn app_files(upstream: &Section<'_>) -> AppFiles {
    AppFiles {
        ca: upstream.field("ca").and_then(|field| ca(&field)),
        client: upstream.field("client_certificate").and_then(|field| pair(&field).map(|(pair, _)| pair)),
    }
}

/// The name in an app's certificate.
pub(super) fn server_name(upstream: &Section<'_>) -> Option<Arc<str>> {
    upstream.parsed("server_name", |text| match is_server_name(text) {
        true => Ok(text.into()),
        false => {
            let mend = "write the name in the app's certificate, such as \"app.internal\"";
            Err(Fault::new(format!("{text:?} is no name of a server"), mend))
        }
    })
}

/// The sets of files that routes name for their own apps, each once.
pub(super) fn own_files(routes: &[Arc<RouteConfig>]) -> Vec<AppFiles> {
    let mut own: Vec<AppFiles> = Vec::new();
    let encrypted = routes.iter().map(|route| &route.upstream).filter(|app| app.is_secure());
    for files in encrypted.filter_map(|app| app.files.as_deref()) {
        if !own.contains(files) {
            own.push(files.clone());
        }
    }
    own
}

fn listener(section: &Section<'_>, acme: Option<Acme>) -> Option<ListenerFiles> {
    let clients = section.field("client_ca").and_then(|field| ca(&field));
    let required = choice(section, "client_auth", &CLIENT_AUTH);
    let oldest = choice(section, "min_version", &MIN_VERSION);
    if required.is_some() && section.field("client_ca").is_none() {
        let mend = "name the roots of the callers' certificates in client_ca, or leave it out";
        section.fail("client_auth", Fault::new("there is no client_ca to judge certificates by", mend));
    }
    let Some(field) = section.field("certificates") else {
        if clients.is_some() && acme.is_none() {
            let mend = "write certificates = [{ chain = \"FILE\", key = \"FILE\" }]";
            section
                .fail("client_ca", Fault::new("without certificates of its own a listener has no TLS", mend));
        }
        return acme.map(|acme| files(Vec::new(), Some(acme), clients, required, oldest));
    };
    let listed = field.one_or_list();
    if listed.is_empty() || listed.len() > CERTIFICATES_MAX {
        let mend = format!("write 1 to {CERTIFICATES_MAX}, such as [{{ chain = \"FILE\", key = \"FILE\" }}]");
        field.fail(format!("holds {} certificates", listed.len()), mend);
    }
    let read: Vec<(Pair, Certificate)> = listed.iter().filter_map(pair).collect();
    for (index, (pair, certificate)) in read.iter().enumerate() {
        if certificate.names.is_empty() && index > 0 {
            let text = format!("{}: names no host, so nobody is ever shown it", pair.chain.display());
            section.warn("certificates", text);
        }
        let ordered = acme.iter().flat_map(|acme| &acme.names);
        for name in ordered.filter(|name| certificate.names.contains(name)) {
            let chain = pair.chain.display();
            let text =
                format!("{chain}: {name} is ordered too (acme); this one is shown until that one is there");
            section.warn("certificates", text);
        }
    }
    let pairs = read.into_iter().map(|(pair, _)| pair).collect();
    Some(files(pairs, acme, clients, required, oldest))
}

fn files(
    pairs: Vec<Pair>,
    acme: Option<Acme>,
    clients: Option<PathBuf>,
    required: Option<bool>,
    oldest: Option<Oldest>,
) -> ListenerFiles {
    let clients = clients.map(|ca| Clients { ca, required: required.unwrap_or(true) });
    ListenerFiles { pairs, acme, clients, oldest: oldest.unwrap_or_default() }
}

/// `{ chain = "FILE", key = "FILE" }`, read and found right.
fn pair(field: &Field<'_>) -> Option<(Pair, Certificate)> {
    let Some(table) = field.value.as_table() else {
        field.fail("is no certificate", "write { chain = \"FILE\", key = \"FILE\" }, both PEM");
        return None;
    };
    let (name, span) = (field.name.clone(), field.span.clone());
    let section = Section::open(field.source, name, Some(table), span, fields::PAIR);
    let (chain, key) = (section.field("chain"), section.field("key"));
    for (there, name) in [(chain.is_some(), "chain"), (key.is_some(), "key")] {
        if !there {
            section
                .fail(name, Fault::new("is missing", "write { chain = \"FILE\", key = \"FILE\" }, both PEM"));
        }
    }
    let (chain, key) = (chain?, key?);
    let pair = Pair { chain: path(&chain)?, key: path(&key)? };
    match Certificate::load(&pair) {
        Ok(certificate) => {
            if let Some(risk) = certificate.risk(Clock::System.now()) {
                section.warn("chain", risk);
            }
            Some((pair, certificate))
        }
        Err(trouble) => {
            let at_fault = if trouble.file == pair.key { &key } else { &chain };
            report(at_fault, &trouble);
            None
        }
    }
}

pub(super) fn ca(field: &Field<'_>) -> Option<PathBuf> {
    let path = path(field)?;
    if let Err(trouble) = roots(&path) {
        report(field, &trouble);
    }
    Some(path)
}

/// A path as it is opened: relative to the configuration's folder.
pub(super) fn path(field: &Field<'_>) -> Option<PathBuf> {
    let text = field.expanded()?.text;
    if text.is_empty() {
        field.fail("names no file", "write a path");
        return None;
    }
    Some(field.source.directory.join(text))
}

fn report(field: &Field<'_>, trouble: &Trouble) {
    // Whether it isn't there or isn't right: nothing but TLS needs it.
    field
        .report(Fault::absent(format!("{}: {}", trouble.file.display(), trouble.what), trouble.mend.clone()));
}

/// A route's `client_name`.
pub(super) fn client_names(route: &Section<'_>, presented: bool) -> Vec<String> {
    let Some(field) = route.field("client_name") else { return Vec::new() };
    if !presented {
        let mend = "set [public_tls] client_ca, or leave it out";
        field.fail("nobody can present a certificate: [public_tls] has no client_ca", mend);
    }
    let parse = |text: &str| {
        let name = text.trim().to_ascii_lowercase();
        if name.is_empty() || name.contains('*') {
            let mend =
                "write a name of the caller's certificate, such as \"client.webhooks.fbclientcerts.com\"";
            return Err(Fault::new(format!("{text:?} is no name"), mend));
        }
        Ok(name)
    };
    let names: Vec<String> = field.one_or_list().iter().filter_map(|element| element.parsed(parse)).collect();
    if field.value.as_array().is_some_and(|array| array.is_empty()) {
        field.fail("the list is empty: every request would be refused", "name somebody, or leave it out");
    }
    names
}
