//! The providers a file may name: those we ship and those in `providers_dir`; and their presets in this room's
//! types.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use super::DuplicateAnswer;
use super::load::not_text;
use super::problem::{Fault, Place, Problem, nearest};
use super::source::{Field, Section};
use super::status::StatusSet;
use crate::providers::Provider;

/// Most provider files that are read, and the longest one, bytes.
const FILES_MAX: usize = 1000;
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Providers by name: the operator's own stand before those we ship.
#[derive(Default)]
pub(super) struct Known {
    own: BTreeMap<String, Arc<Provider>>,
    /// The texts of files that are wrong, which is told.
    wrong: Vec<String>,
}

impl Known {
    /// Reads `providers_dir`, if it is set.
    pub(super) fn read(top: &Section<'_>) -> Self {
        let mut known = Self::default();
        let Some(field) = top.field("providers_dir") else { return known };
        let Some(text) = field.expanded().map(|expanded| expanded.text) else { return known };
        let directory = top.source.directory.join(text);
        let mut files = match toml_files(&directory) {
            Ok(files) => files,
            Err(error) => {
                field.fail(format!("{} cannot be read: {error}", directory.display()), "mend the path");
                return known;
            }
        };
        files.sort();
        for file in files.iter().take(FILES_MAX) {
            known.read_file(file, &field);
        }
        known
    }

    fn read_file(&mut self, file: &Path, field: &Field<'_>) {
        let shown = file.display().to_string();
        let fail = |what: String, mend: &str| {
            let problem =
                Problem { place: Place::whole(&shown), field: String::new(), fault: Fault::new(what, mend) };
            field.source.fail_elsewhere(field.span.start, problem);
        };
        if std::fs::metadata(file).is_ok_and(|metadata| metadata.len() > FILE_BYTES_MAX) {
            return fail("is longer than 1MiB".to_owned(), "provider files are short; is it one?");
        }
        let text = match std::fs::read(file).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                let (place, fault) = not_text(&shown, &error);
                self.wrong.push(String::from_utf8_lossy(error.as_bytes()).into_owned());
                let problem = Problem { place, field: String::new(), fault };
                return field.source.fail_elsewhere(field.span.start, problem);
            }
            Err(error) => return fail(format!("cannot be read: {error}"), "let umavez's user read it"),
        };
        let provider = match Provider::parse(&shown, &text) {
            Ok(provider) => provider,
            Err(error) => {
                self.wrong.push(text);
                let place = Place { file: shown.clone(), at: Some((error.line, error.column)) };
                let fault = Fault::new(error.why, "mend the provider's file");
                let problem = Problem { place, field: String::new(), fault };
                return field.source.fail_elsewhere(field.span.start, problem);
            }
        };
        if Provider::shipped(&provider.name).is_some() {
            let text = format!("{shown} replaces the shipped provider {:?}", provider.name);
            field.source.warn(field.span.start, &field.name, text);
        }
        let name = provider.name.clone();
        if self.own.insert(name.clone(), Arc::new(provider)).is_some() {
            fail(format!("another file also has name = {name:?}"), "name one otherwise");
        }
    }

    /// Whether a file that is wrong means to be this provider: that it isn't there only follows from that.
    pub(super) fn is_wrong(&self, name: &str) -> bool {
        let quoted = format!("\"{name}\"");
        !self.own.contains_key(name) && self.wrong.iter().any(|text| text.contains(&quoted))
    }

    /// The provider called `name`.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Provider>, Fault> {
        if let Some(provider) = self.own.get(name).cloned().or_else(|| Provider::shipped(name)) {
            return Ok(provider);
        }
        let mut names: Vec<&str> = Provider::names();
        names.extend(self.own.keys().map(String::as_str));
        names.sort_unstable();
        let mend = match Provider::alias(name).or_else(|| nearest(name, names.iter().copied())) {
            Some(near) => format!("did you mean {near:?}?"),
            None => {
                format!("known are {}; another needs a file in providers_dir, or key = […]", names.join(", "))
            }
        };
        Err(Fault::new(format!("there is no provider {name:?}"), mend))
    }
}

fn toml_files(directory: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    Ok(files)
}

/// A provider's windows, where there is a provider.
#[derive(Default)]
pub(super) struct Windows {
    pub(super) hot_ttl: Option<Duration>,
    pub(super) durable_ttl: Option<Duration>,
    pub(super) in_flight_wait: Option<Duration>,
}

pub(super) fn windows(provider: Option<&Provider>) -> Windows {
    provider.map_or_else(Windows::default, |provider| Windows {
        hot_ttl: Some(provider.hot_ttl),
        durable_ttl: Some(provider.durable_ttl),
        in_flight_wait: provider.in_flight_wait,
    })
}

pub(super) fn strip_headers(provider: Option<&Provider>) -> &[HeaderName] {
    provider.map_or(&[], |provider| &provider.strip_headers)
}

pub(super) fn done(provider: Option<&Provider>) -> StatusSet {
    provider.and_then(|provider| provider.done.clone()).map_or_else(StatusSet::default, StatusSet)
}

/// The receipt; or, where the route keeps none, what the provider wants to read.
pub(super) fn duplicate_answer(provider: Option<&Provider>, receipt_limit: usize) -> DuplicateAnswer {
    let answer = provider.and_then(|provider| provider.duplicate_answer.as_ref());
    match answer.filter(|_| receipt_limit == 0) {
        Some(answer) => DuplicateAnswer::Fixed {
            status: StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK),
            content_type: answer.content_type.clone(),
            body: answer.body.clone().into(),
        },
        None => DuplicateAnswer::Receipt,
    }
}
