//! `umavez check`: is a configuration right, are its secrets there, do its stores and its collector answer?

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use umavez::config::{Config, Durable, Hot, Mode, RouteConfig, show_duration};
use umavez::gateway::{Asked, Probed};
use umavez::tls::{Clients, ListenerFiles};

use super::{FILE, Failure, load, print, tell};

/// Look at a configuration and its stores; say everything that is wrong or risky
///
/// Problems and warnings go to stderr as `file:line:column: field: what is wrong; mend`. Exits with 0 where all is
/// well (warnings or not), with 64 where the configuration is wrong, with 1 where it is right and a store doesn't
/// answer. The collector of traces is sent an export without spans; one that doesn't take it is a warning, since no
/// request waits for it. Nothing is created: an SQLite file that is not there yet is said to be created at the start.
#[derive(Args)]
#[command(after_help = "Example:\n  umavez check --config /etc/umavez/umavez.toml")]
pub(super) struct Check {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = FILE)]
    config: PathBuf,
    /// Leave the stores and the collector alone: look at the file and its secrets only
    #[arg(long)]
    offline: bool,
}

impl Check {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (config, warnings) = load(&self.config)?;
        for warning in &warnings {
            tell(&format!("{warning} (warning)"));
        }
        print(&summary(&config))?;
        let mut doubts: Vec<String> = umavez::gateway::too_few_files(&config).into_iter().collect();
        if !self.offline {
            doubts.extend(others(&config)?);
        }
        for doubt in &doubts {
            tell(&format!("{}: {doubt} (warning)", self.config.display()));
        }
        let warnings = counted(warnings.len() + doubts.len(), "warning");
        print(&format!("{}: ok, {warnings}\n", self.config.display()))
    }
}

/// Connects to both stores, each of which that does not answer is a problem of its own, and to the collector. Gives
/// what a gateway runs with all the same.
fn others(config: &Config) -> Result<Vec<String>, Failure> {
    let (mut said, mut problems, mut doubts) = (String::new(), Vec::new(), Vec::new());
    for Asked { section: other, said: answer, doubts: risky } in umavez::gateway::probe(config)? {
        doubts.extend(risky.iter().map(|doubt| format!("[{other}] url: {doubt}")));
        let answer = match answer {
            Ok(Probed::Answers) => "answers",
            Ok(Probed::KeyByKey) => {
                let doubt = "[hot] url: names one server, which keeps its keys in slots, as a cluster does, and is \
                             asked key by key; where it is a cluster, write redis-cluster:// (with TLS \
                             rediss-cluster://)";
                doubts.push(doubt.to_owned());
                "answers, key by key"
            }
            Ok(Probed::InUse) => "in use by a running gateway",
            Ok(Probed::NotYet) => "not there yet; it will be created at the start",
            Err(error) if other == "traces" => {
                let why = causes(&error);
                let mend = collector_mend(&why);
                doubts.push(format!("[traces] endpoint: the collector takes no spans: {why}; {mend}"));
                continue;
            }
            Err(error) => {
                let why = causes(&error);
                let mend = mend(other, config, &why);
                problems.push(format!("[{other}] url: the store does not answer: {why}; {mend}"));
                continue;
            }
        };
        writeln!(said, "{other:<9} {answer}").expect("a String takes any text");
    }
    print(&said)?;
    if problems.is_empty() {
        return Ok(doubts);
    }
    problems.extend(doubts);
    Err(Failure::Other(anyhow::anyhow!(problems.join("\numavez: "))))
}

fn collector_mend(why: &str) -> &'static str {
    let answered = |status: u16| why.contains(&format!("it answered {status}"));
    if answered(401) || answered(403) {
        "mend [traces] headers"
    } else if answered(404) || answered(405) {
        "mend [traces] endpoint, to which /v1/traces is added"
    } else {
        "start it, or mend [traces] endpoint"
    }
}

/// An error and its causes, each once: some repeat their cause's text as their own, and Postgres's tell a line of its
/// source.
fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = match cause.rsplit_once(" at line ") {
            Some((told, line)) if line.bytes().all(|byte| byte.is_ascii_digit()) => told,
            Some(_) | None => &cause,
        };
        if text.ends_with(cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause);
    }
    text
}

fn mend(store: &str, config: &Config, why: &str) -> String {
    let missing = |what: &str| why.contains(&format!("{what} \"")) && why.ends_with("\" does not exist");
    match (store, &config.durable) {
        ("durable", Durable::Sqlite { .. }) if why.contains(" is gone, ") => {
            "or name another file".to_owned()
        }
        ("durable", Durable::Sqlite { path, .. }) => {
            format!("let umavez's user write {} and its folder, or name another file", path.display())
        }
        ("durable", Durable::Postgres(_)) if missing("role") => {
            "create the role, or mend [durable] url".to_owned()
        }
        ("durable", Durable::Postgres(_)) if missing("database") => {
            "create the database, or mend [durable] url".to_owned()
        }
        ("durable", Durable::Postgres(_)) if why.contains("does not fit") => {
            "or name another one in [durable] url".to_owned()
        }
        ("durable", Durable::Postgres(_)) if why.contains("authentication failed") => {
            "mend [durable] url: its user and password are not the database's".to_owned()
        }
        ("hot", _) if why.contains("node of a cluster") => {
            "write redis-cluster:// for redis://, rediss-cluster:// for rediss://".to_owned()
        }
        _ => format!("start it, or mend [{store}] url"),
    }
}

/// What the configuration comes to, for people.
fn summary(config: &Config) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<9} {value}").expect("a String takes any text");
    };
    let listen = &config.listen;
    line("listen", format!("public {}, admin {}", listen.public, listen.admin));
    for (name, files) in [("public", &config.tls.public), ("admin", &config.tls.admin)] {
        if let Some(files) = files {
            line("tls", format!("{name}: {}", tls_line(files)));
        }
    }
    line(
        "hot",
        match &config.hot {
            Hot::Memory { .. } => "in the process".to_owned(),
            Hot::Redis(redis) => format!("redis, names begin with {}:", redis.prefix),
        },
    );
    line(
        "durable",
        match &config.durable {
            Durable::Sqlite { path, .. } => format!("sqlite, {}", path.display()),
            Durable::Postgres(_) => "postgres".to_owned(),
        },
    );
    match &config.upstream {
        Some(target) => line("upstream", target.to_string()),
        None => line("upstream", "none: what matches no route is answered with 404".to_owned()),
    }
    if let Some(traces) = &config.traces {
        line("traces", format!("to {}, sampled at {}", traces.endpoint, traces.sample_ratio));
    }
    for route in &config.routes {
        line("route", route_line(route));
    }
    text
}

fn route_line(route: &RouteConfig) -> String {
    let methods = match &route.methods {
        Some(methods) => methods.iter().map(http::Method::as_str).collect::<Vec<_>>().join(","),
        None => "POST,PUT,…".to_owned(),
    };
    let what = route.provider.as_ref().map_or("own key", |provider| provider.name.as_str());
    let signed = if route.secrets.is_empty() && route.public_key.is_none() { "unsigned" } else { "signed" };
    format!(
        "{}: {methods} {}{} to {}; {what}, {signed}, remembered {} (hot) and {} (durable){}",
        route.name,
        route.host.as_deref().unwrap_or_default(),
        route.path.0,
        route.upstream,
        show_duration(route.terms.hot_ttl),
        show_duration(route.terms.durable_ttl),
        match route.mode {
            Mode::Inline => "",
            Mode::Shadow => "; in shadow: counts, and forwards everything",
        },
    )
}

fn tls_line(files: &ListenerFiles) -> String {
    let clients = match &files.clients {
        None => "no client certificates",
        Some(Clients { required: false, .. }) => "client certificates optional",
        Some(Clients { required: true, .. }) => "client certificates required",
    };
    let filed = (!files.pairs.is_empty()).then(|| counted(files.pairs.len(), "certificate"));
    let ordered = files.acme.as_ref().map(|acme| {
        let count = counted(acme.names.len(), "certificate");
        format!("{count} ordered from {} ({})", acme.directory, acme.names.join(", "))
    });
    filed.into_iter().chain(ordered).chain([clients.to_owned()]).collect::<Vec<_>>().join(", ")
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        more => format!("{more} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_and_without_a_line_of_postgres() {
        let cause = anyhow::anyhow!("database \"umavez\" does not exist at line 948")
            .context("error returned from database: database \"umavez\" does not exist at line 948")
            .context("the database cannot be reached");
        assert_eq!(
            causes(&cause),
            "the database cannot be reached: error returned from database: database \"umavez\" does not exist"
        );
    }
}
