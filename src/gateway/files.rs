//! How many files this process may open: raised as far as it may be, and held against the connections that are allowed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Open files of one connection: its own socket, and one to the app.
const EACH: u64 = 2;

/// Raises the limit to what this process may raise it to.
pub(super) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(?current, ?maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(%error, ?current, "the limit of open files can't be raised"),
    }
}

/// What is to be said where fewer files may be opened than the connections take that are allowed; `None` where all is
/// well. A running gateway has raised its limit to the hard one, which is what counts here.
pub fn too_few_files(config: &Config) -> Option<String> {
    let max = u64::try_from(config.limits.connections_max).unwrap_or(u64::MAX);
    let needed = max.saturating_mul(EACH);
    let may = getrlimit(Resource::Nofile).maximum.filter(|may| *may < needed)?;
    Some(format!(
        "limits.connections_max: {max} connections take {needed} open files, and this process may have {may}: past them \
         nobody is let in and the app isn't reached; raise the hard limit (LimitNOFILE of the unit, ulimits of the \
         container, ulimit -Hn), or lower it to {} or less",
        may / EACH
    ))
}
