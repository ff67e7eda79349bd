//! What `umavez check` says of `[public_tls.acme]`, without ordering anything.

use std::path::Path;

use umavez::config::{Config, ConfigErrors, Environment, Warning};

use crate::tls::pki::{Authority, Folder};

const ROUTE: &str =
    "[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\nupstream = \"http://127.0.0.1:1\"\n";

fn parse(folder: &Path, text: &str) -> Result<(Config, Vec<Warning>), ConfigErrors> {
    let env = Environment::from([("EAB".to_owned(), "MAC_key-".to_owned())]);
    Config::parse(&folder.join("u.toml"), &format!("{text}\n{ROUTE}"), &env)
}

fn with(line: &str) -> String {
    let least = [("names", "\"a.example\""), ("terms_agreed", "true"), ("cache", "\"acme\"")];
    let mut text = "[public_tls.acme]\n".to_owned();
    for (name, value) in least {
        if !line.starts_with(&format!("{name} ")) && line != name {
            text.push_str(&format!("{name} = {value}\n"));
        }
    }
    if line.contains('=') { text + line } else { text }
}

#[test]
fn it_is_off_unless_names_are_named() {
    let folder = Folder::new();
    for text in ["", "[public_tls.acme]"] {
        let (config, _) = parse(folder.path(), text).unwrap();
        assert!(config.tls.public.is_none(), "{text}");
    }
    let (config, _) = parse(folder.path(), &with("contact = \"ops@example.com\"")).unwrap();
    let acme = config.tls.public.unwrap().acme.unwrap();
    assert_eq!(acme.directory, "https://acme-v02.api.letsencrypt.org/directory");
    assert_eq!(
        (acme.names, acme.contacts),
        (vec!["a.example".into()], vec!["mailto:ops@example.com".into()])
    );
    assert_eq!(acme.cache, folder.path().join("acme"));
    assert!(!acme.cache.exists(), "a look makes nothing");
    let (config, _) = parse(folder.path(), &with("directory = \"letsencrypt-staging\"")).unwrap();
    let acme = config.tls.public.unwrap().acme.unwrap();
    assert_eq!(acme.directory, "https://acme-staging-v02.api.letsencrypt.org/directory");
}

#[test]
fn what_could_not_be_ordered_has_its_place_and_a_mend() {
    let folder = Folder::new();
    folder.put("no-folder", "");
    let table = [
        ("names", "1:1: public_tls.acme.names", "is missing", "write names ="),
        ("names = []", "4:9: public_tls.acme.names", "holds 0", "write 1 to 100"),
        ("names = [\"*.a.example\"]", "4:10: public_tls.acme.names", "wildcard", "DNS-01"),
        ("names = [\"a_b.example\"]", "4:10: public_tls.acme.names", "no host name", "hooks.example.com"),
        ("names = [\"münchen.example\"]", "4:10: public_tls.acme.names", "no host name", "xn--"),
        ("names = [\"127.0.0.1\"]", "4:10: public_tls.acme.names", "is an address", "write names"),
        ("names = [\"a.b\", \"A.b.\"]", "4:17: public_tls.acme.names", "named twice", "once"),
        ("names = \"intranet\"", "4:9: public_tls.acme.names", "without a dot", "authority of your own"),
        ("terms_agreed", "1:1: public_tls.acme.terms_agreed", "is missing", "letsencrypt.org/repository"),
        ("terms_agreed = false", "4:16: public_tls.acme.terms_agreed", "is not true", "terms_agreed = true"),
        (
            "terms_agreed = \"yes\"",
            "4:16: public_tls.acme.terms_agreed",
            "is not true",
            "terms_agreed = true",
        ),
        ("cache", "1:1: public_tls.acme.cache", "is missing", "/var/lib/umavez/acme"),
        ("cache = \"no-folder/acme\"", "4:9: public_tls.acme.cache", "is no folder", "name a folder"),
        ("cache = \"/proc/acme\"", "4:9: public_tls.acme.cache", "can't be written", "another folder"),
        ("contact = \"ops\"", "5:11: public_tls.acme.contact", "no mail address", "you@example.com"),
        ("directory = \"http://ca.example/\"", "5:13: public_tls.acme.directory", "no directory", "https://"),
        ("directory = \"staging\"", "5:13: public_tls.acme.directory", "no directory", "letsencrypt-staging"),
        (
            "directory_ca = \"none.pem\"",
            "5:16: public_tls.acme.directory_ca",
            "cannot be read",
            "mend the path",
        ),
        ("external_account = \"x\"", "5:20: public_tls.acme.external_account", "no external", "id ="),
        (
            "external_account = { id = \"x\" }",
            "5:20: public_tls.acme.external_account.key",
            "is missing",
            "as the authority",
        ),
        (
            "external_account = { id = \"x\", key = \"${EAB}!\" }",
            "5:38: public_tls.acme.external_account.key",
            "no base64url",
            "as the authority shows it",
        ),
        ("name = \"a.example\"", "5:1: public_tls.acme.name", "unknown field", "`names`"),
    ];
    for (line, place, what, mend) in table {
        let errors = parse(folder.path(), &with(line)).map(|_| ()).unwrap_err().to_string();
        let place = format!("{}:{place}: ", folder.path().join("u.toml").display());
        assert!(errors.starts_with(&place), "{line}:\n{errors}");
        assert!(errors.contains(what) && errors.contains(mend), "{line}:\n{errors}");
        assert_eq!(errors.lines().count(), 1, "{line}:\n{errors}");
    }
    let admin = "[admin_tls.acme]\nnames = \"a.example\"";
    assert!(parse(folder.path(), admin).unwrap_err().to_string().contains("admin_tls.acme: unknown field"));
}

#[test]
fn a_key_is_not_printed_and_what_is_risky_is_said() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let external = with("external_account = { id = \"x\", key = \"${EAB}\" }");
    let (config, warnings) = parse(folder.path(), &external).unwrap();
    assert!(warnings.iter().all(|warning| !warning.field.contains("acme")), "{warnings:?}");
    let acme = config.tls.public.unwrap().acme.unwrap();
    let printed = format!("{acme:?}");
    assert!(printed.contains("\"x\"") && !printed.contains("key"), "{printed}");

    // A wildcard beside it is meant; the same name twice may be.
    let pair = folder.pair("a", &authority.issue(&["a.example"]));
    let wild = folder.pair("wild", &authority.issue(&["*.example"]));
    std::fs::create_dir(folder.path().join("acme")).unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    std::fs::set_permissions(folder.path().join("acme"), open).unwrap();
    let text = format!("[public_tls]\ncertificates = [{pair}, {wild}]\n{}", with(""));
    let (_, warnings) = parse(folder.path(), &text).unwrap();
    let told: Vec<String> =
        warnings.iter().filter(|w| w.field.contains("tls")).map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("a.example is ordered too"), "{told:?}");
    assert!(told[1].contains("public_tls.acme.cache: ") && told[1].contains("others may write"), "{told:?}");
}
