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
const WORDS: &[&str] = &["auth", "cookie", "jwt", "bearer", "pwd", "tok", "clave", "secreto"];
/// What stands before `key` in such a name.
const KEYS: &[&str] = &["api", "access", "private", "secret", "auth", "signing", "encryption", "sas"];
/// The last two words of a name for a URL that lets whoever has it post, as Slack and Mattermost send it.
const POSTING: [&str; 2] = ["response", "url"];
/// The same in Portuguese and Spanish, where what such a word belongs to follows it: `senha_do_usuario`.
const LEADING: &[&str] = &[
    "senha",
    "segredo",
    "credencial",
    "credenciais",
    "credenciales",
    "contraseña",
    "contrasena",
    "contrasenha",
];
/// What is a credential there only where one of `OPENS` follows: a `chave` alone is a Pix key or an invoice's.
const LEADING_KEYS: &[&str] = &["chave", "clave", "llave", "token"];
const OPENS: &[&str] = &[
    "api",
    "acesso",
    "acceso",
    "secreta",
    "secreto",
    "privada",
    "privado",
    "autenticação",
    "autenticacao",
    "autenticación",
    "autenticacion",
    "assinatura",
    "criptografia",
];
/// What may stand between the two.
const OF: &[&str] = &["de", "da", "do", "del", "la"];
/// Such names written as one word.
const JOINED: &[&str] = &["chaveapi", "chavesecreta", "chaveacesso", "claveapi", "clavesecreta"];
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
        || JOINED.contains(&singular)
        || (["key", "chave"].contains(&singular)
            && before.last().is_some_and(|word| KEYS.contains(&word.as_str())))
        || (POSTING[1] == singular && before.last().is_some_and(|word| word == POSTING[0]))
        || leads(&words)
}

/// Whether the name is one as Portuguese and Spanish build them: the noun first, or `nova_senha`, `chaveDeAcesso`.
fn leads(words: &[String]) -> bool {
    let singular = |word: &String| word.strip_suffix('s').unwrap_or(word).to_owned();
    words.iter().enumerate().any(|(at, word)| {
        let rest = words.iter().skip(at + 1).find(|word| !OF.contains(&word.as_str()));
        let noun = singular(word);
        LEADING.contains(&noun.as_str())
            || LEADING.contains(&word.as_str())
            || (LEADING_KEYS.contains(&noun.as_str())
                && rest.is_some_and(|word| OPENS.contains(&word.as_str())))
    })
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
            "senha",
            "Senha",
            "senhas",
            "novaSenha",
            "senha_do_usuario",
            "chave_api",
            "chaveApi",
            "chaveapi",
            "chave_secreta",
            "chave_de_acesso",
            "chavesDeAcesso",
            "X-Api-Chave",
            "segredo",
            "segredos",
            "contraseña",
            "contrasena",
            "CONTRASEÑA",
            "clave",
            "clave_secreta",
            "credencial",
            "credenciais",
            "credenciales",
            "token_acesso",
            "token_de_acceso",
            "response_url",
            "responseUrl",
            "response_urls",
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
            "chave",
            "chave_pix",
            "chave_nfe",
            "chaveDoPedido",
            "ClaveProdServ",
            "resenha",
            "desenhado",
            "conclave",
            "token_id",
            "url",
            "response",
            "webhook_response_code",
            "",
            "--",
        ] {
            assert!(!tells(name), "{name}");
        }
        assert_eq!(words("data.keyId-URLPath2x"), ["data", "key", "id", "urlpath2x"]);
    }
}
