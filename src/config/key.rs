//! What names a route's events: its own `key`, or its provider's rules; and that the path has what they read from it.

use super::RoutePath;
use super::problem::{Fault, nearest};
use super::source::Section;
use crate::providers::{ItemRules, Provider};

/// Longest key part list of a route.
const KEY_PARTS_MAX: usize = 16;

/// The rules by which a route's events are told apart. `path` is `None` where it is wrong itself.
pub(super) fn items(
    route: &Section<'_>,
    provider: Option<&Provider>,
    path: Option<&RoutePath>,
) -> Option<ItemRules> {
    let Some(field) = route.field("key") else {
        let misspelt = route.misspells("provider") || route.misspells("key");
        if route.field("provider").is_none() && !misspelt {
            let mend = "write provider = \"…\", or key = [\"$.id\"]";
            route.fail("key", Fault::new("a route needs a provider or a key", mend));
        }
        let rules = provider.map(|provider| provider.rules.clone())?;
        if let Some(fault) = lacking(&rules, path) {
            route.fail("provider", fault);
        }
        return Some(rules);
    };
    let parts = field.list()?;
    if parts.is_empty() || parts.len() > KEY_PARTS_MAX {
        let mend = format!("write 1 to {KEY_PARTS_MAX} parts, such as [\"$.id\"]");
        field.fail(format!("has {} parts", parts.len()), mend);
        return None;
    }
    let texts: Vec<String> =
        parts.iter().map(|part| part.text().map(str::to_owned)).collect::<Option<_>>()?;
    let presets = provider.map(|provider| &provider.rules);
    let compile = |texts: &[String]| match presets {
        Some(presets) => presets.under_key(texts),
        None => ItemRules::from_key(texts),
    };
    match compile(&texts) {
        Ok(rules) => {
            warn_of_grouped(route, provider, &rules);
            for (part, text) in parts.iter().zip(&texts) {
                if looks_like_a_field(text) {
                    let warning = format!(
                        "{text:?} is a literal, the same in every event; to read that field of a JSON body write \"$.{text}\", \
                         or \"literal:{text}\" if the text itself is meant"
                    );
                    part.source.warn(part.span.start, &part.name, warning);
                }
                // A literal by itself is no key, and reads nothing.
                let alone = compile(std::slice::from_ref(text)).ok();
                if let Some(fault) = alone.and_then(|rules| lacking(&rules, path)) {
                    part.report(fault);
                }
            }
            Some(rules)
        }
        Err(error) => {
            let mend = "a part is a literal, $.json.path, header:NAME, query:NAME, path:NAME or form:NAME; of one item \
                        of a provider's batch, @.json.path";
            let part = error.position.checked_sub(1).and_then(|at| parts.get(at));
            let place = part.unwrap_or(&field);
            place.fail(error.to_string(), mend);
            None
        }
    }
}

/// Whether a part without a prefix is written as other programs write a field within a field: `data.id`.
fn looks_like_a_field(text: &str) -> bool {
    let name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'[' | b']' | b'*'))
    };
    text.contains('.') && text.split('.').all(name)
}

/// Warns of a key of the whole delivery where the provider puts several events into one.
fn warn_of_grouped(route: &Section<'_>, provider: Option<&Provider>, own: &ItemRules) {
    if let Some(provider) = provider.filter(|provider| provider.rules.groups_events())
        && !own.groups_events()
    {
        let text = format!(
            "is of the whole delivery, and {} puts several events into one: they are then one event, nothing is cut out, \
             and what is new beside a key that was seen before is swallowed; begin the parts that name an event with @, \
             as in @.id, and each has a key of its own",
            provider.name
        );
        route.warn("key", text);
    }
}

/// What is wrong where `rules` read a placeholder that `path` has not: such a part never has a value.
fn lacking(rules: &ItemRules, path: Option<&RoutePath>) -> Option<Fault> {
    let path = path?;
    let sources = rules.key_sources();
    let mut read = sources.iter().filter_map(|source| source.strip_prefix("path:"));
    let name = read.find(|name| !path.placeholders().any(|known| known == *name))?;
    let mend = match nearest(name, path.placeholders()) {
        Some(near) => format!("did you mean path:{near}?"),
        None => format!("write a path with {{{name}}}, or another part"),
    };
    Some(Fault::new(format!("path:{name} reads nothing: the path has no {{{name}}}"), mend))
}
