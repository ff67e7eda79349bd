//! Says of TOML that doesn't parse what to write instead, where that can be told: text without its quotes.

use super::problem::Fault;

/// Parts of the names of fields whose values may be secrets, which no message repeats.
const HUSHED: [&str; 7] = ["secret", "token", "key", "url", "pass", "hmac", "_id"];

/// What is wrong at byte `offset` of `text`, where the parser says `message`: the value's offset, and the fault.
pub(super) fn fault(text: &str, offset: usize, message: &str) -> (usize, Fault) {
    unquoted(text, offset).unwrap_or_else(|| (offset, Fault::new(message, "mend the TOML: https://toml.io")))
}

/// A value that is text without quotes, `mode = inline`, on the line of `offset`.
fn unquoted(text: &str, offset: usize) -> Option<(usize, Fault)> {
    let start = text.get(..offset)?.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(start..)?.lines().next()?;
    let (name, rest) = line.split_once('=')?;
    let (name, value) = (name.trim(), rest.split('#').next()?.trim());
    let at = start + line.len() - rest.trim_start().len();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let in_value = |c: char| plain(c) || "/:$?&%+*@~{}".contains(c);
    // The error is in the value, or right behind it.
    let meant = (at..=at + value.len()).contains(&offset)
        && !name.is_empty()
        && name.chars().all(plain)
        && value.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '$' | '/' | '.'))
        && value.contains(char::is_alphabetic)
        && value.chars().all(in_value);
    if !meant {
        return None;
    }
    let lower = value.to_lowercase();
    if matches!(&*lower, "true" | "false") {
        return Some((at, Fault::new("is not written as TOML has it", format!("write {lower}"))));
    }
    let hushed = HUSHED.iter().any(|part| name.to_lowercase().contains(part));
    let mend = if hushed { format!("write {name} = \"…\"") } else { format!("write \"{value}\"") };
    Some((at, Fault::new("text needs quotes", mend)))
}
