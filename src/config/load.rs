//! Reads a configuration file from its first byte to a Config, or to every reason why there is none.

use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::problem::{ConfigErrors, Fault, Place, Warning};
use super::route::{self, Around};
use super::source::{Reading, Section, Source, article};
use super::{
    Config, Durable, Environment, Hot, RouteConfig, fields, providers, risk, scopes, sections, syntax, tls,
    traces, units,
};
use crate::flow::RouteTable;

/// Longest configuration file that is read, bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most routes of one file.
const ROUTES_MAX: usize = 10_000;

/// Where a configuration was read from, and is read from again.
#[derive(Clone)]
pub struct ConfigFile {
    pub path: PathBuf,
    /// As it was when the process began: what a running process was given doesn't change.
    pub env: Environment,
}

impl ConfigFile {
    /// Reads it as [`Config::load`] does.
    pub fn load(&self) -> Result<(Config, Vec<Warning>), ConfigErrors> {
        Config::load(&self.path, &self.env)
    }
}

impl Config {
    /// Reads `path`. Secrets are taken from `env` and from the files that it names; relative paths in it are
    /// relative to its directory.
    pub fn load(path: &Path, env: &Environment) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        parse(path, &text_of(path)?, env, Reading::Serve)
    }

    /// The routes of `path`, to tell events' keys by and not to serve: they lack the secrets, certificates and addresses
    /// that aren't there.
    pub fn load_routes(path: &Path, env: &Environment) -> Result<Vec<Arc<RouteConfig>>, ConfigErrors> {
        let (config, _) = parse(path, &text_of(path)?, env, Reading::Keys)?;
        Ok(config.routes)
    }

    /// Reads `text` as if it stood in the file `path`.
    pub fn parse(path: &Path, text: &str, env: &Environment) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        parse(path, text, env, Reading::Serve)
    }
}

pub(super) fn text_of(path: &Path) -> Result<String, ConfigErrors> {
    let shown = path.display().to_string();
    let unreadable =
        |what: String, mend: &str| ConfigErrors::one(Place::whole(&shown), "", Fault::new(what, mend));
    let metadata = std::fs::metadata(path);
    if metadata.as_ref().is_ok_and(|metadata| metadata.len() > FILE_BYTES_MAX) {
        return Err(unreadable("is longer than 4MiB".to_owned(), "is it a configuration file?"));
    }
    let bytes = std::fs::read(path).map_err(|error| {
        unreadable(format!("cannot be read: {error}"), "mend the path, or let umavez's user read it")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let (place, fault) = not_text(&shown, &error);
        ConfigErrors::one(place, "", fault)
    })
}

/// Where a file is no UTF-8, and what to do about it.
pub(super) fn not_text(shown: &str, error: &FromUtf8Error) -> (Place, Fault) {
    let (bytes, end) = (error.as_bytes(), error.utf8_error().valid_up_to());
    let readable = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    let what = format!("is not UTF-8: byte 0x{:02x}", bytes.get(end).copied().unwrap_or_default());
    (Place::of(shown, &readable, end), Fault::new(what, "save the file as UTF-8"))
}

fn parse(
    path: &Path,
    text: &str,
    env: &Environment,
    reading: Reading,
) -> Result<(Config, Vec<Warning>), ConfigErrors> {
    let source = Source::new(path, text, env, reading);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut told = None;
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            let (offset, fault) = syntax::fault(text, offset, error.message());
            // A word without quotes makes several errors of the parser.
            if told.replace(offset) != Some(offset) {
                source.fail(offset, "", fault);
            }
        }
        // What follows a syntax error would be guesses.
        return Err(source.verdict().err().unwrap_or(ConfigErrors(Vec::new())));
    }
    let config = read(&source, table.get_ref(), table.span());
    let warnings = source.verdict()?;
    Ok((config, warnings))
}

fn read<'a>(source: &'a Source<'a>, table: &'a DeTable<'a>, span: std::ops::Range<usize>) -> Config {
    let top = Section::open(source, String::new(), Some(table), span, fields::TOP);
    let known = providers::Known::read(&top);
    let listen = sections::listen(&top);
    let limits = sections::limits(&top);
    let app = top.section("upstream", fields::UPSTREAM);
    let upstream = sections::upstream(&app);
    risk::warn_of_loop(&app, "url", upstream.as_ref(), listen.public);
    let mut tls = tls::read(&top, &app);
    let around = Around {
        providers: &known,
        public: listen.public,
        upstream: upstream.as_ref(),
        upstream_is_wrong: app.field("url").is_some() || app.misspells("url"),
        limits: &limits,
        client_certificates: !source.serves()
            || tls.public.as_ref().is_some_and(|public| public.clients.is_some()),
    };
    let routes = routes(&top, &around);
    let traces = traces::read(&top);
    tls.own = tls::own_files(&routes);
    tls.collector = traces.as_ref().and_then(|traces| traces.endpoint.files.as_deref().cloned());
    let config = Config {
        hot: sections::hot(&top),
        durable: sections::durable(&top),
        log: sections::log(&top),
        traces,
        listen,
        tls,
        upstream,
        routes,
        limits,
    };
    warn_of_the_whole(&top, &config);
    config
}

fn routes<'a>(top: &Section<'a>, around: &Around<'_>) -> Vec<Arc<RouteConfig>> {
    let Some(field) = top.field("route") else { return Vec::new() };
    let Some(list) = field.value.as_array() else {
        field.fail(format!("is {}, not a list of tables", article(field.value)), "write [[route]]");
        return Vec::new();
    };
    if list.len() > ROUTES_MAX {
        field.fail(format!("there are {} routes", list.len()), format!("at most {ROUTES_MAX} fit"));
        return Vec::new();
    }
    let mut routes: Vec<Arc<RouteConfig>> = Vec::new();
    let mut offsets: Vec<usize> = Vec::new();
    let mut scoped_at: Vec<Option<usize>> = Vec::new();
    for (index, element) in list.iter().enumerate() {
        let DeValue::Table(table) = element.get_ref() else {
            field.fail(format!("holds {}, not a table", article(element.get_ref())), "write [[route]]");
            continue;
        };
        let Some(route) = route::read(field.source, table, element.span(), index + 1, around) else {
            continue;
        };
        let offset_of = |name: &str| table.get(name).map_or(element.span().start, |value| value.span().start);
        if routes.iter().any(|other| other.name == route.name) {
            let fault = Fault::new("another route has the same name", "name one otherwise");
            field.source.fail(offset_of("name"), &format!("route {:?}.name", route.name), fault);
        }
        offsets.push(offset_of("path"));
        scoped_at.push(table.get("scope").map(|scope| scope.span().start));
        routes.push(Arc::new(route));
    }
    let scoped: Vec<bool> = scoped_at.iter().map(Option::is_some).collect();
    for (at, text) in scopes::that_meet(&routes, &scoped) {
        let field_name = format!("route {:?}.scope", routes[at].name);
        field.source.warn(scoped_at[at].unwrap_or_default(), &field_name, text);
    }
    // The table that requests are matched with is also what says whether two routes contradict each other.
    if let Err(conflicts) = RouteTable::new(&routes) {
        for conflict in conflicts {
            let fault = Fault::new(conflict.to_string(), "change host, path or method of one");
            let field_name = format!("route {:?}.path", conflict.second);
            field.source.fail(offsets[conflict.second_index], &field_name, fault);
        }
    }
    routes
}

/// Warnings that no single field earns.
fn warn_of_the_whole(top: &Section<'_>, config: &Config) {
    if config.routes.is_empty() {
        let text = match config.upstream {
            Some(_) => "there is no route: everything passes through, nothing is recognised as a copy",
            None => "there is no route and no [upstream] url: everything is answered with 404",
        };
        top.warn("route", text);
    }
    let longest = config.routes.iter().map(|route| route.timeout).max().unwrap_or_default();
    if config.listen.grace < longest {
        let text = format!(
            "listen.grace of {} is shorter than the longest route timeout of {}: a stop may cut work short",
            units::show_duration(config.listen.grace),
            units::show_duration(longest)
        );
        top.warn("listen", text);
    }
    match (&config.hot, &config.durable) {
        (Hot::Redis(_), Durable::Sqlite { .. }) => top.warn(
            "durable",
            "the durable store is a file of this machine: a single instance only, a second gateway would not see its \
             events",
        ),
        (Hot::Memory { .. }, Durable::Sqlite { .. } | Durable::Postgres(_))
        | (Hot::Redis(_), Durable::Postgres(_)) => {}
    }
    if matches!((&config.hot, &config.durable), (Hot::Memory { .. }, Durable::Sqlite { .. })) {
        let text = "both stores are embedded: a single instance only; run one gateway only, on one machine";
        top.warn("durable", text);
    }
}
