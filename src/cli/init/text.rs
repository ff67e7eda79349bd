//! The text of a first configuration: what was chosen as settings, the rest as comments. Pure.

use std::path::Path;
use std::sync::Arc;

use umavez::config::Environment;
use umavez::providers::Provider;

use super::Choices;
use crate::cli::page;

/// Where a comment's lines end, characters.
const WIDTH: usize = 110;

/// The path and name of the route for a sender of one's own.
const OWN: &str = "events";

/// The variable that the admin listener's token is taken from.
pub(super) const ADMIN_TOKEN: &str = "UMAVEZ_ADMIN_TOKEN";

/// The whole file.
pub(super) fn whole(choices: &Choices, env: &Environment) -> String {
    let mut text = String::from(
        "# Made by `umavez init`. A setting that is commented out shows its default, or an example.\n\
         # `umavez check --config FILE` says what is wrong or risky; `umavez run --config FILE` serves.\n",
    );
    text.push_str(&listen(choices));
    text.push_str(&stores(choices));
    let app = quoted(choices.upstream.as_deref().unwrap_or("http://127.0.0.1:3000"));
    text.push_str(&format!(
        "\n[upstream]\n# The app: for every route, and for what matches none.\nurl = {app}\n"
    ));
    for provider in providers(choices) {
        text.push_str(&route_of(&provider, choices, env));
    }
    if !choices.key.is_empty() {
        text.push_str(&own_route(choices));
    }
    text
}

/// What each provider's route still lacks to know who sends: its name, and the variables and files.
pub(super) fn missing(choices: &Choices, env: &Environment) -> Vec<(String, String)> {
    let lacking = |provider: Arc<Provider>| (provider.name.clone(), lacking(&page::block(&provider), env));
    providers(choices).map(lacking).filter(|(_, lacking)| !lacking.is_empty()).collect()
}

/// The variables that the file needs and that are not set, each once.
pub(super) fn unset(choices: &Choices, env: &Environment) -> Vec<String> {
    let text = whole(choices, env);
    let mut names: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        for (name, _) in line.split("${").skip(1).filter_map(|rest| rest.split_once('}')) {
            if !Source::Variable(name).is_there(env) && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// Each route's name and the path that its sender calls.
pub(super) fn paths(choices: &Choices) -> Vec<(String, String)> {
    let own = (!choices.key.is_empty()).then_some(OWN);
    let names = choices.providers.iter().map(String::as_str).chain(own);
    names.map(|name| (name.to_owned(), format!("/webhooks/{name}"))).collect()
}

fn listen(choices: &Choices) -> String {
    let public = choices.listen.map_or_else(|| "0.0.0.0:8080".to_owned(), |address| address.to_string());
    let admin = choices.admin.map_or_else(|| "127.0.0.1:9180".to_owned(), |address| address.to_string());
    let mut text = format!(
        "\n[listen]\n# Providers come here.\npublic = {}\n# Metrics, health and the event API: not for the internet.\nadmin = {}\n",
        quoted(&public),
        quoted(&admin)
    );
    if choices.admin.is_some_and(|address| !address.ip().is_loopback()) {
        text.push_str("# Asked of everyone who comes there, since others than this machine can.\n");
        text.push_str(&format!("admin_token = \"${{{ADMIN_TOKEN}}}\"\n"));
    }
    text.push_str("# What stands in front: its X-Forwarded-* headers are believed. Networks or addresses.\n");
    match &choices.trusted_proxies[..] {
        [] => text.push_str("#trusted_proxies = [\"127.0.0.1\"]\n"),
        given => text.push_str(&format!("trusted_proxies = [{}]\n", list(given))),
    }
    text + "\n# TLS here instead of in front. The files are read again when they change.\n#[public_tls]\n\
            #certificates = [{ chain = \"/etc/ssl/hooks.pem\", key = \"/etc/ssl/hooks.key\" }]\n"
}

fn stores(choices: &Choices) -> String {
    let url = |given: &Option<String>, example: &str| match given {
        Some(url) => format!("url = {}\n", quoted(url)),
        None => format!("#url = {}\n", quoted(example)),
    };
    let hot = url(&choices.redis, "redis://127.0.0.1:6379");
    let durable = url(&choices.postgres, "postgres://umavez:${PGPASSWORD}@127.0.0.1/umavez");
    format!(
        "\n[hot]\n# Answers copies fast, and may forget. Left out: in the process, for one gateway.\n{hot}\
         \n[durable]\n# Decides, and remembers. Left out: SQLite, umavez.db beside this file, for one gateway.\n{durable}"
    )
}

/// One provider's route, as its page has it: less what is not known yet, which stands there as a comment.
fn route_of(provider: &Provider, choices: &Choices, env: &Environment) -> String {
    let mut text = format!("\n{}", comment(&provider.notes.setup));
    let block = page::block(provider);
    let lacking = lacking(&block, env);
    let mut told = lacking.is_empty();
    for line in block.lines() {
        if !lacking.is_empty() && Source::of(line).is_some() {
            if !std::mem::replace(&mut told, true) {
                text.push_str(&format!(
                    "# Set {lacking}, then take the # away: until then anyone can send.\n"
                ));
            }
            text.push_str(&format!("#{line}\n"));
        } else if line.starts_with("public_url") {
            text.push_str(&public_url(line, &provider.name, choices));
        } else {
            text.push_str(&format!("{line}\n"));
        }
    }
    text + &mode(choices) + &on_unknown(choices)
}

fn public_url(example: &str, name: &str, choices: &Choices) -> String {
    let line = match &choices.public_url {
        Some(base) => {
            format!("public_url = {}", quoted(&format!("{}/webhooks/{name}", base.trim_end_matches('/'))))
        }
        None => format!("#{example}"),
    };
    format!(
        "# The URL is signed too. Without this it is taken from Host and trusted X-Forwarded-*.\n{line}\n"
    )
}

fn own_route(choices: &Choices) -> String {
    let parts = list(&choices.key);
    format!(
        "\n[[route]]\nname = \"{OWN}\"\n# What the sender calls.\npath = \"/webhooks/{OWN}\"\n\
         # What names an event: $.json.path, header:NAME, query:NAME, form:NAME, or a word as it is.\nkey = [{parts}]\n{}{}",
        mode(choices),
        on_unknown(choices)
    )
}

fn mode(choices: &Choices) -> String {
    let setting = if choices.shadow { "mode = \"shadow\"" } else { "#mode = \"inline\"" };
    format!(
        "# \"shadow\" only counts copies, and forwards everything: to begin with, in front of an app that serves already.\n\
         {setting}\n"
    )
}

fn on_unknown(choices: &Choices) -> String {
    let setting = if choices.hold { "on_unknown = \"hold\"" } else { "#on_unknown = \"retry\"" };
    format!(
        "# The app gave no complete answer, so nobody knows: \"retry\" lets the next copy through, \"hold\" keeps the\n\
         # event for a person (`umavez events held`).\n{setting}\n"
    )
}

fn providers(choices: &Choices) -> impl Iterator<Item = Arc<Provider>> {
    choices.providers.iter().filter_map(|name| Provider::named(name).ok())
}

/// What of a route's block isn't there yet, for people; empty where all of it is.
fn lacking(block: &str, env: &Environment) -> String {
    let sources = block.lines().filter_map(Source::of).filter(|source| !source.is_there(env));
    sources.map(|source| source.shown()).collect::<Vec<_>>().join(" and ")
}

/// Where a line takes its value from.
enum Source<'a> {
    Variable(&'a str),
    File(&'a str),
}

impl<'a> Source<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let between = |open, close| line.split_once(open)?.1.split_once(close).map(|(name, _)| name);
        between("${", "}").map(Self::Variable).or_else(|| between("file = \"", "\"").map(Self::File))
    }

    fn is_there(&self, env: &Environment) -> bool {
        match self {
            Self::Variable(name) => env.get(*name).is_some_and(|value| !value.trim().is_empty()),
            Self::File(path) => Path::new(path).exists(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Variable(name) => (*name).to_owned(),
            Self::File(path) => format!("the file {path}"),
        }
    }
}

fn list(texts: &[String]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Text as comment lines, broken between words.
fn comment(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(format!("# {word}")),
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}
