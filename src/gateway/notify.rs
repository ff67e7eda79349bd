//! Tells systemd how the process is doing, where it was started by a unit with `Type=notify`.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where systemd listens, as `NOTIFY_SOCKET` says; nobody where that isn't set.
#[derive(Clone, Debug, Default)]
pub struct Notify(pub Option<String>);

impl Notify {
    pub(super) fn ready(&self) {
        self.say("READY=1");
    }

    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, state: &str) {
        let Some(name) = self.0.as_deref().filter(|name| !name.is_empty()) else { return };
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name.as_bytes()),
            None => SocketAddr::from_pathname(name),
        };
        let said = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
        if let Err(error) = said {
            tracing::warn!(%error, state, "systemd can't be told");
        }
    }
}
