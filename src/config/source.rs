//! A configuration file while it is read: sections, fields, their spans, and the problems found so far.
//! Reading goes on after a problem, so that one run names them all.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::Environment;
use super::problem::{ConfigErrors, Fault, Place, Problem, Warning, nearest};
use super::units;

/// The file, what its values may refer to, and what was found wrong with it.
pub(super) struct Source<'a> {
    pub(super) file: String,
    pub(super) text: &'a str,
    /// What relative paths in the file are relative to.
    pub(super) directory: PathBuf,
    pub(super) env: &'a Environment,
    reading: Reading,
    found: RefCell<Found>,
}

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// To serve by it: everything that it refers to has to be there.
    Serve,
    /// To tell events' keys by it, perhaps on another machine: secrets, certificates and addresses may be missing.
    Keys,
}

/// Problems and warnings, each with its offset for sorting.
#[derive(Default)]
struct Found {
    problems: Vec<(usize, Problem)>,
    warnings: Vec<(usize, Warning)>,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &Path, text: &'a str, env: &'a Environment, reading: Reading) -> Self {
        let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Self { file: path.display().to_string(), text, directory, env, reading, found: RefCell::default() }
    }

    pub(super) fn fail(&self, offset: usize, field: &str, fault: Fault) {
        let place = Place::of(&self.file, self.text, offset);
        self.fail_elsewhere(offset, Problem { place, field: field.to_owned(), fault });
    }

    /// A problem in another file, sorted as if it were at `offset` of this one.
    pub(super) fn fail_elsewhere(&self, offset: usize, problem: Problem) {
        // Where the providers' files are is the one thing that keys need.
        if self.reading == Reading::Keys && problem.fault.absent && problem.field != "providers_dir" {
            return;
        }
        self.found.borrow_mut().problems.push((offset, problem));
    }

    pub(super) fn warn(&self, offset: usize, field: &str, text: impl Into<String>) {
        let place = Place::of(&self.file, self.text, offset);
        let warning = Warning { place, field: field.to_owned(), text: text.into() };
        self.found.borrow_mut().warnings.push((offset, warning));
    }

    /// Whether what the file refers to has to be there.
    pub(super) fn serves(&self) -> bool {
        self.reading == Reading::Serve
    }

    /// The warnings, or every problem, each in the file's order.
    pub(super) fn verdict(self) -> Result<Vec<Warning>, ConfigErrors> {
        let mut found = self.found.into_inner();
        found.problems.sort_by_key(|(offset, _)| *offset);
        found.warnings.sort_by_key(|(offset, _)| *offset);
        if found.problems.is_empty() {
            return Ok(found.warnings.into_iter().map(|(_, warning)| warning).collect());
        }
        Err(ConfigErrors(found.problems.into_iter().map(|(_, problem)| problem).collect()))
    }
}

/// A table of the file with a closed set of fields; may be absent, which is the same as empty.
pub(super) struct Section<'a> {
    pub(super) source: &'a Source<'a>,
    /// As in messages: `listen`, `route "pix"`; empty for the file's top.
    pub(super) name: String,
    table: Option<&'a DeTable<'a>>,
    pub(super) span: Range<usize>,
    known: &'static [&'static str],
}

impl<'a> Section<'a> {
    /// Opens a table and reports every field of it that is not `known`.
    pub(super) fn open(
        source: &'a Source<'a>,
        name: String,
        table: Option<&'a DeTable<'a>>,
        span: Range<usize>,
        known: &'static [&'static str],
    ) -> Self {
        let section = Self { source, name, table, span, known };
        for key in table.iter().flat_map(|table| table.keys()) {
            let written = key.get_ref().as_ref();
            if !known.contains(&written) {
                let mend = match nearest(written, known.iter().copied()) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("known are {}", known.join(", ")),
                };
                let fault = Fault::new("unknown field", mend);
                source.fail(key.span().start, &section.qualified(written), fault);
            }
        }
        section
    }

    /// Whether an unknown field here was most likely meant to be `field`, which then is not missing.
    pub(super) fn misspells(&self, field: &str) -> bool {
        let unknown = |written: &str| !self.known.contains(&written);
        let mut written = self.table.iter().flat_map(|table| table.keys()).map(|key| key.get_ref().as_ref());
        written.any(|key| unknown(key) && nearest(key, self.known.iter().copied()) == Some(field))
    }

    /// The sub-table `field`.
    pub(super) fn section(&self, field: &'static str, known: &'static [&'static str]) -> Section<'a> {
        let name = self.qualified(field);
        let Some(value) = self.field(field) else {
            return Self::open(self.source, name, None, self.span.clone(), known);
        };
        let table = value.value.as_table();
        if table.is_none() {
            value
                .fail(format!("is {}, not a table", article(value.value)), format!("write [{}]", value.name));
        }
        Self::open(self.source, name, table, value.span, known)
    }

    /// The value of `field`, if it is there.
    pub(super) fn field(&self, field: &'static str) -> Option<Field<'a>> {
        debug_assert!(self.known.contains(&field), "{field} is read but not listed as known");
        let value = self.table?.get(field)?;
        Some(Field {
            source: self.source,
            name: self.qualified(field),
            span: value.span(),
            value: value.get_ref(),
        })
    }

    /// The value of `field` through `parse`; `None` where it is absent, or wrong and reported.
    pub(super) fn parsed<T>(
        &self,
        field: &'static str,
        parse: impl FnOnce(&str) -> Result<T, Fault>,
    ) -> Option<T> {
        self.field(field)?.parsed(parse)
    }

    pub(super) fn duration(&self, field: &'static str, bounds: RangeInclusive<Duration>) -> Option<Duration> {
        self.field(field)?.duration(bounds)
    }

    pub(super) fn size(&self, field: &'static str, bounds: RangeInclusive<usize>) -> Option<usize> {
        self.field(field)?.size(bounds)
    }

    pub(super) fn count(&self, field: &'static str, bounds: RangeInclusive<usize>) -> Option<usize> {
        self.field(field)?.count(bounds)
    }

    /// Reports a field that has to be there and is not, or a contradiction of several.
    pub(super) fn fail(&self, field: &str, fault: Fault) {
        let span = self.table.and_then(|table| table.get(field)).map_or(self.span.start, |v| v.span().start);
        self.source.fail(span, &self.qualified(field), fault);
    }

    pub(super) fn warn(&self, field: &str, text: impl Into<String>) {
        let span = self.table.and_then(|table| table.get(field)).map_or(self.span.start, |v| v.span().start);
        self.source.warn(span, &self.qualified(field), text);
    }

    fn qualified(&self, field: &str) -> String {
        if self.name.is_empty() { field.to_owned() } else { format!("{}.{field}", self.name) }
    }
}

/// One value of the file and where it stands.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) name: String,
    pub(super) span: Range<usize>,
    pub(super) value: &'a DeValue<'a>,
}

impl<'a> Field<'a> {
    pub(super) fn fail(&self, what: impl Into<String>, mend: impl Into<String>) {
        self.report(Fault::new(what, mend));
    }

    pub(super) fn report(&self, fault: Fault) {
        self.source.fail(self.span.start, &self.name, fault);
    }

    /// The text of a string; another type is reported.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.fail(format!("is {}, not text", article(self.value)), "write it in quotes");
        }
        text
    }

    pub(super) fn parsed<T>(&self, parse: impl FnOnce(&str) -> Result<T, Fault>) -> Option<T> {
        match parse(self.text()?) {
            Ok(value) => Some(value),
            Err(fault) => {
                self.report(fault);
                None
            }
        }
    }

    /// The elements of a list; another type is reported.
    pub(super) fn list(&self) -> Option<Vec<Field<'a>>> {
        let Some(array) = self.value.as_array() else {
            self.fail(format!("is {}, not a list", article(self.value)), "write it in [brackets]");
            return None;
        };
        let element = |value: &'a toml::Spanned<DeValue<'a>>| Field {
            span: value.span(),
            value: value.get_ref(),
            ..self.clone()
        };
        Some(array.iter().map(element).collect())
    }

    /// The elements of a list, or the one value that stands for a list of one.
    pub(super) fn one_or_list(&self) -> Vec<Field<'a>> {
        if self.value.is_array() { self.list().unwrap_or_default() } else { vec![self.clone()] }
    }

    /// Text, or a whole number's digits.
    pub(super) fn word(&self) -> Option<String> {
        match self.value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(number) => Some(number.as_str().to_owned()),
            DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => {
                self.fail(format!("is {}", article(self.value)), "write text or a whole number");
                None
            }
        }
    }

    pub(super) fn duration(&self, bounds: RangeInclusive<Duration>) -> Option<Duration> {
        let duration = match self.value {
            DeValue::Integer(number) => {
                let number = number.as_str();
                self.fail("a duration needs a unit", format!("write \"{number}s\", or ms, m, h, d"));
                return None;
            }
            DeValue::String(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => self.parsed(units::parse_duration)?,
        };
        if !bounds.contains(&duration) {
            let (least, most) = (units::show_duration(*bounds.start()), units::show_duration(*bounds.end()));
            self.fail(
                format!("{} is out of bounds", units::show_duration(duration)),
                format!("write \"{least}\" to \"{most}\""),
            );
            return None;
        }
        Some(duration)
    }

    pub(super) fn size(&self, bounds: RangeInclusive<usize>) -> Option<usize> {
        let size = match units::parse_size(&self.word()?) {
            Ok(size) => size,
            Err(fault) => {
                self.report(fault);
                return None;
            }
        };
        let size = usize::try_from(size).ok().filter(|size| bounds.contains(size));
        if size.is_none() {
            let show = |bytes: usize| units::show_size(u64::try_from(bytes).unwrap_or(u64::MAX));
            let (least, most) = (show(*bounds.start()), show(*bounds.end()));
            self.fail("is out of bounds", format!("write \"{least}\" to \"{most}\""));
        }
        size
    }

    pub(super) fn count(&self, bounds: RangeInclusive<usize>) -> Option<usize> {
        let number = match self.value {
            DeValue::Integer(number) => usize::from_str_radix(number.as_str(), number.radix()).ok(),
            DeValue::String(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => None,
        };
        let number = number.filter(|number| bounds.contains(number));
        if number.is_none() {
            let mend = format!("write a whole number from {} to {}", bounds.start(), bounds.end());
            self.fail("is not such a number", mend);
        }
        number
    }
}

/// "a table", "an integer": for messages.
pub(super) fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
