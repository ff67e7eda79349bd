//! What `umavez check` says of certificates: field, place and mend.

use std::path::Path;

use umavez::config::{Config, ConfigErrors, Environment, Warning};

use super::pki::{Authority, Folder};
use crate::support::unix_seconds;

const ROUTE: &str =
    "[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\nupstream = \"http://127.0.0.1:1\"\n";

fn parse(folder: &Path, text: &str) -> Result<(Config, Vec<Warning>), ConfigErrors> {
    Config::parse(&folder.join("u.toml"), text, &Environment::new())
}

#[test]
fn every_file_that_is_of_no_use_has_its_place_and_a_mend() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (one, two) = (authority.issue(&["one.example"]), authority.issue(&["two.example"]));
    folder.pair("one", &one);
    folder.pair("two", &two);
    folder.put("ca.pem", &authority.pem);
    folder.put("upside-down.pem", &format!("{}{}", authority.pem, one.chain));
    folder.put("empty.pem", "");
    folder.put("half.pem", one.chain.split_at(300).0);
    folder.put(
        "locked.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMII=\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    folder.put("noise.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let certificate = |chain: &str, key: &str| {
        format!("[public_tls]\ncertificates = [{{ chain = \"{chain}\", key = \"{key}\" }}]")
    };
    let table = [
        (
            certificate("none.pem", "one.key"),
            "2:27: public_tls.certificates.chain",
            "cannot be read",
            "mend the path",
        ),
        (
            certificate("one.pem", "none.key"),
            "2:44: public_tls.certificates.key",
            "cannot be read",
            "mend the path",
        ),
        (
            certificate("one.pem", "two.key"),
            "2:44: public_tls.certificates.key",
            "does not belong",
            "renewed",
        ),
        (
            certificate("one.key", "one.pem"),
            "2:27: public_tls.certificates.chain",
            "no certificate",
            "other's place",
        ),
        (
            certificate("one.pem", "two.pem"),
            "2:44: public_tls.certificates.key",
            "no private key",
            "other's place",
        ),
        (certificate("empty.pem", "one.key"), "2:27: public_tls.certificates.chain", "no certificate", "PEM"),
        (
            certificate("half.pem", "one.key"),
            "2:27: public_tls.certificates.chain",
            "no PEM",
            "copy it again",
        ),
        (certificate("noise.pem", "one.key"), "2:27: public_tls.certificates.chain", "of no use", "again"),
        (
            certificate("one.pem", "locked.key"),
            "2:44: public_tls.certificates.key",
            "encrypted",
            "passphrase",
        ),
        (
            certificate("upside-down.pem", "one.key"),
            "2:27: public_tls.certificates.chain",
            "out of order",
            "first",
        ),
        ("[public_tls]\ncertificates = []".into(), "2:16: public_tls.certificates", "holds 0", "write 1 to"),
        (
            "[public_tls]\ncertificates = \"one.pem\"".into(),
            "2:16: public_tls.certificates",
            "is no certificate",
            "key =",
        ),
        (
            "[admin_tls]\ncertificates = { chain = \"one.pem\" }".into(),
            "2:16: admin_tls.certificates.key",
            "is missing",
            "key =",
        ),
        (
            format!("{}\nclient_ca = \"none.pem\"", certificate("one.pem", "one.key")),
            "3:13: public_tls.client_ca",
            "cannot be read",
            "mend the path",
        ),
        (
            format!("{}\nclient_auth = \"optional\"", certificate("one.pem", "one.key")),
            "3:15: public_tls.client_auth",
            "no client_ca",
            "name the roots",
        ),
        (
            "[public_tls]\nclient_ca = \"ca.pem\"".into(),
            "2:13: public_tls.client_ca",
            "no TLS",
            "certificates =",
        ),
        (
            "[public_tls]\nmin_version = \"1.1\"".into(),
            "2:15: public_tls.min_version",
            "not known here",
            "1.2",
        ),
        (
            "[public_tls]\ncertificate = []".into(),
            "2:1: public_tls.certificate",
            "unknown field",
            "`certificates`",
        ),
        ("[upstream]\nca = \"one.key\"".into(), "2:6: upstream.ca", "no certificate", "other's place"),
        (
            "[upstream]\nclient_certificate = { chain = \"one.pem\", key = \"two.key\" }".into(),
            "2:49: upstream.client_certificate.key",
            "does not belong",
            "renewed",
        ),
    ];
    for (text, place, what, mend) in table {
        let errors = parse(folder.path(), &format!("{text}\n{ROUTE}")).map(|_| ()).unwrap_err().to_string();
        let place = format!("{}:{place}: ", folder.path().join("u.toml").display());
        assert!(errors.starts_with(&place), "{text}:\n{errors}");
        assert!(errors.contains(what) && errors.contains(mend), "{text}:\n{errors}");
        assert_eq!(errors.lines().count(), 1, "{text}:\n{errors}");
    }
}

#[test]
fn a_route_that_asks_for_a_client_needs_roots_to_judge_it_by() {
    let (authority, folder) = (Authority::new(), Folder::new());
    folder.pair("one", &authority.issue(&["one.example"]));
    folder.put("ca.pem", &authority.pem);
    let tls =
        "[public_tls]\ncertificates = { chain = \"one.pem\", key = \"one.key\" }\nclient_ca = \"ca.pem\"\n";
    let (config, _) = parse(folder.path(), &format!("{tls}{ROUTE}client_name = \"A.example\"")).unwrap();
    assert_eq!(config.routes[0].client_names, ["a.example"]);
    for (text, said) in [
        (format!("{ROUTE}client_name = \"a.example\""), "6:15: route \"r\".client_name: nobody can present"),
        (format!("{tls}{ROUTE}client_name = []"), "9:15: route \"r\".client_name: the list is empty"),
        (
            format!("{tls}{ROUTE}client_name = \"*.a.example\""),
            "9:15: route \"r\".client_name: \"*.a.example\" is no",
        ),
    ] {
        let errors = parse(folder.path(), &text).map(|_| ()).unwrap_err().to_string();
        assert!(errors.contains(said), "{errors}");
    }
}

#[test]
fn a_certificate_near_its_end_is_warned_of_and_serves() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (hour, day) = (3600, 86_400);
    for (left, said) in
        [(-hour, Some("expired at ")), (3 * day - hour, Some("expires in 2 days, at ")), (15 * day, None)]
    {
        let not_after = unix_seconds().checked_add_signed(left).unwrap();
        let issued = authority.issue_until(&["one.example"], not_after);
        let pair = folder.pair("one", &issued);
        let (config, warnings) =
            parse(folder.path(), &format!("[public_tls]\ncertificates = {pair}\n{ROUTE}")).unwrap();
        assert!(config.tls.public.is_some());
        let told: Vec<String> = warnings
            .iter()
            .map(ToString::to_string)
            .filter(|warning| warning.contains("certificate"))
            .collect();
        match said {
            None => assert!(told.is_empty(), "{told:?}"),
            Some(said) => {
                assert_eq!(told.len(), 1, "{told:?}");
                assert!(told[0].contains("u.toml:2:26: public_tls.certificates.chain: "), "{told:?}");
                assert!(told[0].contains(said) && told[0].contains("renew it"), "{told:?}");
            }
        }
    }
}

#[test]
fn an_app_of_a_routes_own_is_checked_at_its_place() {
    // What a route's own app can't be reached with has to be told before the first event, as for `[upstream]`.
    let (authority, folder) = (Authority::new(), Folder::new());
    folder.put("ca.pem", &authority.pem);
    let route = |upstream: &str| ROUTE.replace("\"http://127.0.0.1:1\"", upstream);
    for (upstream, field, what) in [
        ("{ ca = \"ca.pem\" }", "upstream.url", "is missing; write { url ="),
        ("{ url = \"https://a\", roots = \"x\" }", "upstream.roots", "unknown field"),
        ("{ url = \"https://a\", ca = \"none.pem\" }", "upstream.ca", "cannot be read"),
        (
            "{ url = \"http://a\", ca = \"ca.pem\" }",
            "upstream.ca",
            "is not used: the app is reached without TLS",
        ),
        ("{ url = \"https://a\", server_name = \"a b\" }", "upstream.server_name", "is no name of a server"),
        ("{ url = \"ftp://a\" }", "upstream.url", "unknown scheme"),
    ] {
        let errors = parse(folder.path(), &route(upstream)).map(|_| ()).unwrap_err().to_string();
        assert!(
            errors.contains(&format!(": route \"r\".{field}: ")) && errors.contains(what),
            "{upstream}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{upstream}: {errors}");
    }
    let right = "{ url = \"https://a\", ca = \"ca.pem\", server_name = \"app.internal\" }";
    let (config, _) = parse(folder.path(), &route(right)).unwrap();
    assert_eq!(config.tls.own.len(), 1);
    assert!(!config.has_encrypted_apps(), "the system's roots are not needed");
}
