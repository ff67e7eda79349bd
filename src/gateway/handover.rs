//! One process follows another on the same listening sockets, which are never closed: whoever knocks meanwhile waits in
//! the kernel, and is served by either. The new process asks through a Unix socket, gets the sockets, says when it
//! serves, and then the old one stops.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::listen::Inherited;

/// How long the other process may take for each step of handing sockets over.
const STEP_MAX: Duration = Duration::from_secs(5);

/// Comes with each socket.
const SOCKET: u8 = b's';
/// Follows the last socket.
const THAT_IS_ALL: u8 = b'.';
/// The new process serves, or waits for what only one process can have: the old one is to stop.
const STOP: u8 = b'!';

/// The line to the process before; it breaks when that has ended.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Asks for the sockets; `None` where nobody is there to have any.
    pub(super) fn ask(path: &Path) -> io::Result<Option<(Self, Inherited)>> {
        let line = match UnixStream::connect(path) {
            Ok(line) => line,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        line.set_read_timeout(Some(STEP_MAX))?;
        line.set_write_timeout(Some(STEP_MAX))?;
        let pid = same_user(&line)?;
        let mut sockets = Inherited::default();
        while let Some(socket) = receive(&line)? {
            sockets.add(TcpListener::from(socket))?;
        }
        tracing::info!(pid, "took over the sockets of the gateway that runs");
        Ok(Some((Self(line), sockets)))
    }

    /// From here on the process before accepts nothing more, and ends when it has finished.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.0.write_all(&[STOP])
    }

    /// Waits until the process before has ended.
    pub(super) async fn ended(self) -> io::Result<()> {
        self.0.set_nonblocking(true)?;
        let mut line = tokio::net::UnixStream::from_std(self.0)?;
        let mut nothing = [0];
        // It says nothing more: whatever comes, an end or an error, means that it is gone.
        line.read(&mut nothing).await.map(drop).or(Ok(()))
    }
}

/// Offers sockets to the next process, until one has taken them and says that it serves; gives the line to it, which
/// is to be kept until this process has ended.
pub(super) async fn offer(
    at: UnixListener,
    sockets: Vec<TcpListener>,
    taken: oneshot::Sender<tokio::net::UnixStream>,
    stop: CancellationToken,
) {
    let mut sockets = sockets;
    loop {
        let line = tokio::select! {
            () = stop.cancelled() => return,
            accepted = at.accept() => match accepted {
                Ok((line, _)) => line,
                Err(error) => {
                    tracing::warn!(%error, "nobody can take over");
                    tokio::time::sleep(STEP_MAX).await;
                    continue;
                }
            },
        };
        // Sending blocks where the other side doesn't read.
        let sent = tokio::task::spawn_blocking(move || {
            let sent = line.into_std().and_then(|line| send_all(line, &sockets));
            (sockets, sent)
        });
        let Ok((kept, sent)) = sent.await else { return };
        sockets = kept;
        let (mut line, pid) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                tracing::warn!(%error, "a process asked for the sockets, and did not get them");
                continue;
            }
        };
        tracing::info!(pid, "a new process has the sockets; it says when it serves");
        let mut said = [0];
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = line.read(&mut said) => heard,
        };
        if matches!(heard, Ok(1)) && said == [STOP] {
            // Nobody listens where the gateway stops already.
            taken.send(line).ok();
            return;
        }
        tracing::warn!(pid, "the new process gave up before it served");
    }
}

/// Listens for the next process. A socket that nobody answers any more is put aside.
pub(super) fn listen(path: &Path, took_over: bool) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
        }
        Ok(_) => {
            if !took_over && !UnixStream::connect(path).is_err_and(|error| is_nobody(&error)) {
                let what = "another gateway offers its sockets there: start with --takeover, or name another";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
            }
            std::fs::remove_file(path)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// The process at the other end, which has to be of the same user, or root's.
fn same_user(line: &UnixStream) -> io::Result<i32> {
    let peer = sockopt::socket_peercred(line)?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        let what = format!("the process at the other end is of user {}", peer.uid.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(peer.pid.as_raw_nonzero().get())
}

fn send_all(line: UnixStream, sockets: &[TcpListener]) -> io::Result<(tokio::net::UnixStream, i32)> {
    line.set_nonblocking(false)?;
    line.set_write_timeout(Some(STEP_MAX))?;
    let pid = same_user(&line)?;
    for socket in sockets {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        let socket = [socket.as_fd()];
        if !along.push(SendAncillaryMessage::ScmRights(&socket)) {
            return Err(io::Error::other("no room for a socket"));
        }
        sendmsg(&line, &[IoSlice::new(&[SOCKET])], &mut along, SendFlags::NOSIGNAL)?;
    }
    let mut line = line;
    line.write_all(&[THAT_IS_ALL])?;
    line.set_nonblocking(true)?;
    let _in_its_runtime = tokio::runtime::Handle::current().enter();
    Ok((tokio::net::UnixStream::from_std(line)?, pid))
}

/// The next socket; `None` after the last one.
fn receive(line: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let mut kind = [0];
    let got = recvmsg(line, &mut [IoSliceMut::new(&mut kind)], &mut along, RecvFlags::CMSG_CLOEXEC)?;
    let mut socket = None;
    for message in along.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            socket = rights.last();
        }
    }
    match (got.bytes, kind, socket) {
        (1, [SOCKET], Some(socket)) => Ok(Some(socket)),
        (1, [THAT_IS_ALL], None) => Ok(None),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the gateway that runs broke off")),
    }
}
