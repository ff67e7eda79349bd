//! Where a file's gateway is asked: its admin listener's address, for commands on the same machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use toml::de::DeTable;

use super::load::text_of;
use super::source::{Reading, Section, Source};
use super::{Config, Environment, fields, sections};

impl Config {
    /// The URL of the admin listener of the gateway that serves by the file `path`, as seen from its machine. `None`
    /// where the file isn't there, is no TOML, or has no `[listen] admin` that can be called; what else is wrong with it
    /// doesn't matter, since a running gateway may have read it before.
    pub fn admin_url(path: &Path, env: &Environment) -> Option<String> {
        let text = text_of(path).ok()?;
        let table = DeTable::parse(&text).ok()?;
        let written = table.get_ref().get("listen")?.get_ref().as_table()?;
        written.get("admin")?;
        let source = Source::new(path, &text, env, Reading::Keys);
        let top = Section::open(&source, String::new(), Some(table.get_ref()), table.span(), fields::TOP);
        let address = top.section("listen", fields::LISTEN).parsed("admin", sections::parse_address)?;
        let mut at = address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
        let scheme = if table.get_ref().contains_key("admin_tls") { "https" } else { "http" };
        (at.port() != 0).then(|| format!("{scheme}://{at}"))
    }
}
