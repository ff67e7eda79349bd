//! Listening sockets: inherited from whoever had them before, or bound; several on one address, among which the kernel
//! shares connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel keeps ready for each socket.
const BACKLOG: i32 = 1024;
/// Most sockets that are inherited.
const INHERITED_MAX: usize = 2048;

/// Sockets that listen already: of systemd, or of the gateway before. Nobody who knocks on them is refused while one
/// process follows another.
#[derive(Debug, Default)]
pub struct Inherited(Vec<TcpListener>);

impl Inherited {
    /// What systemd passed to this process; to be called before there is a second thread, as it changes the
    /// environment.
    ///
    /// # Errors
    /// When something was passed that is no TCP socket.
    pub fn from_systemd() -> io::Result<Self> {
        let mut passed = listenfd::ListenFd::from_env();
        let mut sockets = Self::default();
        for index in 0..passed.len().min(INHERITED_MAX) {
            if let Some(socket) = passed.take_tcp_listener(index)? {
                sockets.add(socket)?;
            }
        }
        Ok(sockets)
    }

    /// # Errors
    /// When it is no socket, or there are too many.
    pub fn add(&mut self, socket: TcpListener) -> io::Result<()> {
        if self.0.len() == INHERITED_MAX {
            return Err(io::Error::other(format!("more than {INHERITED_MAX} sockets")));
        }
        socket.set_nonblocking(true)?;
        self.0.push(socket);
        Ok(())
    }

    /// The sockets that listen on an address. One on all addresses of a port is meant by any all-addresses there.
    pub fn take(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        let is = |socket: &TcpListener| {
            socket.local_addr().is_ok_and(|own| {
                let same =
                    own.ip() == address.ip() || own.ip().is_unspecified() && address.ip().is_unspecified();
                same && own.port() == address.port()
            })
        };
        self.0.extract_if(.., |socket| is(socket)).collect()
    }

    /// Where the sockets listen that nobody took.
    pub fn left(&self) -> Vec<SocketAddr> {
        self.0.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }
}

/// `count` sockets on one address. Port 0 is chosen by the first and shared by the rest.
pub fn reuse_port_listeners(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    // Without this look two gateways could share a port by mistake, each getting half of the requests.
    if address.port() != 0 {
        drop(listener(address, false)?);
    }
    let first = listener(address, true)?;
    let address = first.local_addr()?;
    let mut listeners = vec![first];
    while listeners.len() < count {
        listeners.push(listener(address, true)?);
    }
    Ok(listeners)
}

/// Deals sockets to `count` threads: every socket is somebody's, and nobody is without one. Where there are fewer
/// sockets than threads, several threads accept from one.
pub fn dealt(sockets: Vec<TcpListener>, count: usize) -> io::Result<Vec<Vec<TcpListener>>> {
    let mut dealt: Vec<Vec<TcpListener>> = Vec::new();
    for thread in 0..count.min(sockets.len().saturating_mul(count)) {
        let shared = (thread >= sockets.len()).then(|| sockets[thread % sockets.len()].try_clone());
        dealt.push(shared.into_iter().collect::<io::Result<_>>()?);
    }
    for (index, socket) in sockets.into_iter().enumerate() {
        dealt[index % count].push(socket);
    }
    Ok(dealt)
}

fn listener(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if reuse_port {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_socket_and_every_socket_a_thread() {
        for (sockets, threads) in [(1, 1), (1, 4), (4, 4), (5, 2), (3, 4)] {
            let bound = reuse_port_listeners("127.0.0.1:0".parse().unwrap(), sockets).unwrap();
            let dealt = dealt(bound, threads).unwrap();
            assert_eq!(dealt.len(), threads);
            assert!(dealt.iter().all(|own| !own.is_empty()), "{sockets} sockets, {threads} threads");
            assert_eq!(dealt.iter().map(Vec::len).sum::<usize>(), sockets.max(threads));
        }
    }

    #[test]
    fn inherited_sockets_are_known_by_their_address() {
        let bound = reuse_port_listeners("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = bound[0].local_addr().unwrap();
        let mut inherited = Inherited::default();
        for socket in bound {
            inherited.add(socket).unwrap();
        }
        assert!(inherited.take("0.0.0.0:1".parse().unwrap()).is_empty());
        assert_eq!(inherited.left(), [address, address]);
        assert_eq!(inherited.take(address).len(), 2);
        assert!(inherited.left().is_empty());
    }
}
