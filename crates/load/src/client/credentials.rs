//! Who a client says it is: a user's name and password, sent with each call.
//!
//! A password never has to stand on the command line, where other users of the machine can read it.

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use std::fmt;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

/// A channel whose calls say who makes them.
pub type Channel = InterceptedService<tonic::transport::Channel, Signed>;

/// A client's user.
#[derive(Args, Clone, Default)]
pub struct Credentials {
    /// The user to be, while authentication is on; the password comes from --password-file, from
    /// QUOIN_PASSWORD, or is asked for
    #[arg(id = "auth_user", long = "user", value_name = "NAME", env = "QUOIN_USER")]
    pub user: Option<String>,
    /// A file with the user's password on its first line; - is standard input
    #[arg(
        id = "auth_password_file",
        long = "password-file",
        value_name = "FILE",
        env = "QUOIN_PASSWORD_FILE",
        requires = "auth_user"
    )]
    pub password_file: Option<PathBuf>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What this process was given, ready to be sent.
static GIVEN: OnceLock<Option<MetadataValue<Ascii>>> = OnceLock::new();

impl Credentials {
    /// Makes these count for all that this process dials. The first call decides.
    ///
    /// # Errors
    /// The password cannot be read.
    pub fn install(&self) -> Result<()> {
        if GIVEN.get().is_some() {
            return Ok(());
        }
        let value = self.user.as_deref().map(|user| self.value(user)).transpose()?;
        GIVEN.get_or_init(|| value);
        Ok(())
    }

    fn value(&self, user: &str) -> Result<MetadataValue<Ascii>> {
        let password = match &self.password_file {
            Some(file) => read(file)?,
            None => match std::env::var("QUOIN_PASSWORD") {
                Ok(password) => password,
                Err(_) => ask(&format!("Password of {user}: "))?,
            },
        };
        let mut value: MetadataValue<Ascii> =
            format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))).parse()?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// The first line of a file, or of standard input.
///
/// # Errors
/// It cannot be read.
pub fn read(file: &Path) -> Result<String> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("reading the password from {}", file.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Asks whoever sits at the terminal, without showing what is typed.
///
/// # Errors
/// Nobody sits there.
pub fn ask(prompt: &str) -> Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!(
            "there is no terminal to ask for the password: give --password-file FILE (- is standard input)"
        );
    }
    write!(std::io::stderr(), "{prompt}")?;
    let shown = tcgetattr(&input)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Now, &hidden)?;
    let mut line = String::new();
    let read = input.read_line(&mut line);
    tcsetattr(&input, OptionalActions::Now, &shown)?;
    writeln!(std::io::stderr())?;
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Says with each call who makes it.
#[derive(Clone)]
pub struct Signed(Option<MetadataValue<Ascii>>);

impl Signed {
    /// As this process was given.
    pub(super) fn given() -> Self {
        Self(GIVEN.get().cloned().flatten())
    }
}

impl Interceptor for Signed {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line_of_its_file_and_is_not_printed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "planted\nmore\n").unwrap();
        assert_eq!(read(&file).unwrap(), "planted");
        let credentials = Credentials { user: Some("ann".into()), password_file: Some(file) };
        let value = credentials.value("ann").unwrap();
        assert_eq!(value.to_str().unwrap(), format!("Basic {}", BASE64_STANDARD.encode("ann:planted")));
        assert!(!format!("{credentials:?} {value:?}").contains(&BASE64_STANDARD.encode("ann:planted")));
    }
}
