//! The text of a first configuration: what was chosen as settings, the rest as comments. Pure.

use std::sync::Arc;

use umavez::config::Environment;
use umavez::providers::Provider;

use super::Choices;
use crate::cli::page;

/// Where a comment's lines end, characters.
const WIDTH: usize = 110;

/// The path and name of the route for a sender of one's own.
const OWN: &str = "events";

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

/// The environment variables that secrets are to come from and that are not set.
pub(super) fn missing(choices: &Choices, env: &Environment) -> Vec<String> {
    let blocks = providers(choices).map(|provider| page::block(&provider)).collect::<String>();
    blocks.lines().filter_map(variable).filter(|name| !is_set(name, env)).map(str::to_owned).collect()
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
        text.push_str("admin_token = \"${UMAVEZ_ADMIN_TOKEN}\"\n");
    }
    text.push_str("# What stands in front: its X-Forwarded-* headers are believed. Networks or addresses.\n");
    match &choices.trusted_proxies[..] {
        [] => text.push_str("#trusted_proxies = [\"127.0.0.1\"]\n"),
        given => text.push_str(&format!("trusted_proxies = [{}]\n", list(given))),
    }
    text
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
    for line in page::block(provider).lines() {
        if let Some(name) = variable(line).filter(|name| !is_set(name, env)) {
            text.push_str(&format!(
                "# Set {name}, then take the # away: until then anyone can send.\n#{line}\n"
            ));
        } else if line.starts_with("public_url") {
            text.push_str(
                "# The URL is signed too. Without this it is taken from Host and trusted X-Forwarded-*.\n",
            );
            match &choices.public_url {
                Some(base) => {
                    let url = format!("{}/webhooks/{}", base.trim_end_matches('/'), provider.name);
                    text.push_str(&format!("public_url = {}\n", quoted(&url)));
                }
                None => text.push_str(&format!("#{line}\n")),
            }
        } else {
            text.push_str(&format!("{line}\n"));
        }
    }
    text + &on_unknown(choices)
}

fn own_route(choices: &Choices) -> String {
    let parts = list(&choices.key);
    format!(
        "\n[[route]]\nname = \"{OWN}\"\n# What the sender calls.\npath = \"/webhooks/{OWN}\"\n\
         # What names an event: $.json.path, header:NAME, query:NAME, form:NAME, or a word as it is.\nkey = [{parts}]\n{}",
        on_unknown(choices)
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

/// The variable that a line takes its value from.
fn variable(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("${")?;
    rest.split_once('}').map(|(name, _)| name)
}

fn is_set(name: &str, env: &Environment) -> bool {
    env.get(name).is_some_and(|value| !value.trim().is_empty())
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
