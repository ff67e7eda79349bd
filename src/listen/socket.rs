//! Listening sockets: one for each worker on one address, among which the kernel shares connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel keeps ready for each socket.
const BACKLOG: i32 = 1024;

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
