//! Where the listeners' sockets come from: systemd, the gateway before, or this process itself.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context;

use crate::config::Listen;
use crate::listen::{Inherited, dealt, reuse_port_listeners};

/// Every listening socket of a gateway.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Of each serving thread.
    pub(super) public: Vec<Vec<TcpListener>>,
    pub(super) admin: TcpListener,
    /// All of them once more, for the next process.
    pub(super) offered: Vec<TcpListener>,
    pub(super) public_address: SocketAddr,
    pub(super) admin_address: SocketAddr,
}

impl Sockets {
    /// Takes what is inherited for the configured addresses, and binds the rest. What systemd passed has to be of use;
    /// what the gateway before had and this one doesn't want is closed when that one has ended.
    pub(super) fn open(listen: &Listen, mut passed: Inherited, mut taken: Inherited) -> anyhow::Result<Self> {
        let mut inherited = |address| {
            let of_systemd = passed.take(address);
            if of_systemd.is_empty() { taken.take(address) } else { of_systemd }
        };
        let mut public = inherited(listen.public);
        let mut admin = inherited(listen.admin);
        if let Some(address) = passed.left().first() {
            anyhow::bail!(
                "systemd passed a socket on {address}, which is neither [listen] public ({}) nor admin ({}); mend the \
                 socket unit or the configuration",
                listen.public,
                listen.admin
            );
        }
        if public.is_empty() {
            public = reuse_port_listeners(listen.public, listen.workers)
                .with_context(|| format!("[listen] public: can't listen on {}", listen.public))?;
        }
        if admin.is_empty() {
            let bound = bind(listen.admin);
            admin.push(bound.with_context(|| format!("[listen] admin: can't listen on {}", listen.admin))?);
        }
        let offered: Result<_, _> = public.iter().chain(&admin).map(TcpListener::try_clone).collect();
        let public_address = public.first().context("[listen] workers: at least 1")?.local_addr()?;
        let admin = admin.swap_remove(0);
        Ok(Self {
            public: dealt(public, listen.workers)?,
            offered: offered?,
            public_address,
            admin_address: admin.local_addr()?,
            admin,
        })
    }
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
