//! Whether a name tells that its value is a credential: for what no provider file marks, most of all the deliveries of
//! a provider that nobody has described yet. A name that is taken for one wrongly hides a value from people; one that
//! is missed shows a secret.

/// What the last word of such a name ends with.
const ENDINGS: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "hottok",
    "apikey",
    "credential",
    "authorization",
];
/// What such a name's last word is.
const WORDS: &[&str] = &["auth", "cookie", "jwt", "bearer", "pwd", "tok"];
/// What stands before `key` in such a name.
const KEYS: &[&str] = &["api", "access", "private", "secret", "auth", "signing", "encryption", "sas"];
/// Words that tell of something harmless, whatever follows.
const HARMLESS: &[&str] = &["idempotency", "page", "cancel"];

/// Whether values of this name are usually credentials: `X-Api-Key`, `clientSecret`, `verify_token`.
pub(super) fn tells(name: &str) -> bool {
    let words = words(name);
    if words.iter().any(|word| HARMLESS.contains(&word.as_str())) {
        return false;
    }
    let Some((last, before)) = words.split_last() else { return false };
    let singular = last.strip_suffix('s').unwrap_or(last);
    ENDINGS.iter().any(|ending| singular.ends_with(ending))
        || WORDS.contains(&singular)
        || (singular == "key" && before.last().is_some_and(|word| KEYS.contains(&word.as_str())))
}

/// The words of a name, in lower case: split where other characters than letters and digits stand, and where a
/// capital follows a small letter.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small_before = false;
    for character in name.chars() {
        let starts = !character.is_alphanumeric() || (small_before && character.is_uppercase());
        if starts && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        small_before = character.is_lowercase() || character.is_numeric();
        if character.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_told_from_names_of_ids() {
        for name in [
            "token",
            "Authorization",
            "Proxy-Authorization",
            "Cookie",
            "Set-Cookie",
            "X-HOTMART-HOTTOK",
            "hottok",
            "X-Telegram-Bot-Api-Secret-Token",
            "asaas-access-token",
            "apikey",
            "apiKey",
            "APIKEY",
            "api_key",
            "x-api-key",
            "clientSecret",
            "client_secret",
            "hub.verify_token",
            "accessToken",
            "tokens",
            "X-Auth-Key",
            "X-Webhook-Auth",
            "password",
            "privateKey",
            "credentials",
        ] {
            assert!(tells(name), "{name}");
        }
        for name in [
            "id",
            "key",
            "event_id",
            "Idempotency-Key",
            "I-Twilio-Idempotency-Token",
            "X-Hub-Signature-256",
            "signature",
            "author",
            "secretary",
            "tokenizer",
            "nextPageToken",
            "session_id",
            "",
            "--",
        ] {
            assert!(!tells(name), "{name}");
        }
        assert_eq!(words("data.keyId-URLPath2x"), ["data", "key", "id", "urlpath2x"]);
    }
}
