//! TLS 1.3 for gRPC, with certificates on both sides, read anew when they have changed.
//!
//! Certificates are those of one authority, which the files name: whoever has one of it may call. A server must have, beside
//! that, the name that it was called by, or the one that the settings give for all.
//!
//! Files are looked at again before a handshake, once in [`LOOK_EVERY`]: where one has changed, they are read again, in
//! every process and without a signal. Files that do not fit leave what was read before in force, and are warned of once.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::settings::TlsFiles;

/// What gRPC speaks.
const ALPN: &[u8] = b"h2";
/// Whether the files have changed is looked at once in so long.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A handshake waits no longer for that: file systems of a network may hang.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// A side that was refused has so long to read why.
const PART_LIMIT: Duration = Duration::from_secs(1);
/// And may have sent so much meanwhile.
const MAX_PARTING_BYTES: usize = 64 << 10;
/// Names of a certificate that an error tells.
const MAX_NAMES: usize = 4;

/// A connection in TLS, of either side.
pub(crate) type TlsStream = tokio_rustls::TlsStream<TcpStream>;

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read, or holds nothing of the kind.
    #[error("{setting}: {path} {why}")]
    File {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Certificate and key do not go together, or the authorities are none.
    #[error("{} {certificate} and {} {key} cannot be used: {source}", settings[0], settings[1])]
    Unfit {
        /// The settings that name them.
        settings: [&'static str; 2],
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// What the library says.
        source: Box<Error>,
    },
    /// The name for servers is none.
    #[error("RINGWAY_TLS_NAME={0} is no host's name")]
    Name(String),
}

/// What tells one state of a file from another: when it was changed, its length, its number.
type Stamp = Option<(SystemTime, u64, u64)>;

/// What was seen of the files.
struct Seen {
    at: Instant,
    stamps: [Stamp; 3],
}

struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// Of this side's certificate.
    names: String,
}

/// This process's certificate, and the authorities that it trusts.
pub struct Tls {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
    seen: Mutex<Seen>,
    /// Somebody looks at the files.
    looks: AtomicBool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).field("names", &self.names()).finish()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], which says which of them is unfit and why.
    pub fn load(files: TlsFiles) -> Result<Tls, TlsError> {
        let seen = Mutex::new(Seen { at: Instant::now(), stamps: stamps(&files) });
        let loaded = RwLock::new(read(&files)?);
        Ok(Tls { files, loaded, seen, looks: AtomicBool::new(false) })
    }

    /// Reads the files again, for connections that begin from now on; those that stand go on.
    ///
    /// # Errors
    /// [`TlsError`]; what was read before stays in force then.
    pub fn reload(&self) -> Result<(), TlsError> {
        let seen = Seen { at: Instant::now(), stamps: stamps(&self.files) };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        let loaded = read(&self.files)?;
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// Reads the files again if one has changed since they were looked at. Whether they were.
    ///
    /// # Errors
    /// As [`Tls::reload`], once for each change.
    pub fn look(&self) -> Result<bool, TlsError> {
        let is_new = self.seen.lock().unwrap_or_else(PoisonError::into_inner).stamps != stamps(&self.files);
        if is_new { self.reload().map(|()| true) } else { Ok(false) }
    }

    /// Looks at the files before a handshake, if it is time to.
    async fn refresh(self: &Arc<Self>) {
        let is_due = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = seen.at.elapsed() >= LOOK_EVERY;
            if is_due {
                seen.at = Instant::now();
            }
            is_due
        };
        if !is_due || self.looks.swap(true, Ordering::Acquire) {
            return;
        }
        let tls = self.clone();
        let looked = tokio::task::spawn_blocking(move || {
            match tls.look() {
                Ok(false) => {}
                Ok(true) => tracing::info!("certificates read again; this one is for {}", tls.names()),
                Err(error) => tracing::warn!(
                    "certificates have changed and cannot be read again, those before stay in force: {error}"
                ),
            }
            tls.looks.store(false, Ordering::Release);
        });
        // Who comes late goes on with what was read before.
        let _ = tokio::time::timeout(LOOK_LIMIT, looked).await;
    }

    /// The names of this side's certificate, for people.
    #[must_use]
    pub fn names(&self) -> String {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).names.clone()
    }

    /// As a server: the handshake on a connection that was accepted. Where it fails, the connection comes back with the
    /// error, for [`part`].
    pub(super) async fn accept(
        self: &Arc<Self>,
        stream: TcpStream,
    ) -> Result<TlsStream, (io::Error, TcpStream)> {
        self.refresh().await;
        let config = self.loaded.read().unwrap_or_else(PoisonError::into_inner).server.clone();
        Ok(TlsAcceptor::from(config).accept(stream).into_fallible().await?.into())
    }

    /// As a client: the handshake with a server that was called by `host`.
    pub(super) async fn connect(self: &Arc<Self>, stream: TcpStream, host: &str) -> io::Result<TlsStream> {
        self.refresh().await;
        let config = self.loaded.read().unwrap_or_else(PoisonError::into_inner).client.clone();
        let host = self.files.name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(host)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the server has no name to look for"))?;
        Ok(TlsConnector::from(config).connect(name, stream).await?.into())
    }
}

/// Ends a connection whose handshake failed so that the other side reads why: closing it with bytes of the other side unread
/// would reset it, and a reset overtakes the alert.
pub(super) async fn part(mut stream: TcpStream) {
    let mut unread = [0; 1024];
    let mut left = MAX_PARTING_BYTES;
    let all = async {
        stream.shutdown().await?;
        while left > 0 {
            match stream.read(&mut unread).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok::<_, io::Error>(())
    };
    // Whoever sends more, or does not close, may be reset.
    let _ = tokio::time::timeout(PART_LIMIT, all).await;
}

fn stamps(files: &TlsFiles) -> [Stamp; 3] {
    [&files.certificate, &files.key, &files.authorities].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.modified().ok()?, found.len(), found.ino()))
    })
}

fn read(files: &TlsFiles) -> Result<Loaded, TlsError> {
    if let Some(name) = &files.name
        && ServerName::try_from(name.as_str()).is_err()
    {
        return Err(TlsError::Name(name.clone()));
    }
    let [of_certificate, of_key, of_authorities] = files.settings;
    let chain = certificates(of_certificate, &files.certificate)?;
    let authorities = certificates(of_authorities, &files.authorities)?;
    let file = |why: String| TlsError::File { setting: of_key, path: files.key.clone(), why };
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| {
        file(format!("has no key that can be read ({error}): it is to be PEM, not encrypted"))
    })?;
    let unfit = |error| TlsError::Unfit {
        settings: [of_certificate, of_key],
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source: Box::new(error),
    };
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|error| TlsError::File {
            setting: of_authorities,
            path: files.authorities.clone(),
            why: format!("holds a certificate that is no authority's: {error}"),
        })?;
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
    let general = |error: &dyn fmt::Display| unfit(Error::General(error.to_string()));
    let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let clients = Clients(clients.map_err(|error| general(&error))?);
    let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
    let servers = Servers(servers.map_err(|error| general(&error))?);
    let names = describe(&chain[0]);
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_client_cert_verifier(Arc::new(clients))
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(unfit)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    let mut client = client_config(provider, servers, chain, key).map_err(unfit)?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Loaded { server: Arc::new(server), client: Arc::new(client), names })
}

fn client_config(
    provider: Arc<CryptoProvider>,
    servers: Servers,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, Error> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(chain, key)
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |why: String| TlsError::File { setting, path: path.to_owned(), why };
    let unreadable = |error: &dyn fmt::Display| file(format!("cannot be read ({error}): it is to be PEM"));
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
    if found.is_empty() { Err(file("holds no certificate: it is to be PEM".to_owned())) } else { Ok(found) }
}

/// A certificate as people know it: its names, else its serial number.
fn describe(certificate: &CertificateDer<'_>) -> String {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return "one that cannot be read".to_owned();
    };
    let mut names: Vec<&str> = parsed.valid_dns_names().take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "...";
    }
    let serial: String = parsed.serial().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    match names.is_empty() {
        true => format!("serial {serial}"),
        false => format!("{} (serial {serial})", names.join(", ")),
    }
}

/// Which certificate was refused, and why.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of {who} was refused: {why}")]
struct Refused {
    who: String,
    why: String,
}

/// The same error, saying which certificate it is about.
fn named(certificate: &CertificateDer<'_>, error: Error) -> Error {
    let why = match &error {
        // The latter where that other authority has the same name.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "it is of another authority than those in RINGWAY_TLS_CA".to_owned()
        }
        Error::InvalidCertificate(why) => why.to_string(),
        _ => return error,
    };
    let refused = Refused { who: describe(certificate), why };
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
}

/// Looks at clients' certificates.
#[derive(Debug)]
struct Clients(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(certificate, intermediates, now).map_err(|error| named(certificate, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Looks at servers' certificates.
#[derive(Debug)]
struct Servers(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(certificate, intermediates, name, ocsp, now);
        verified.map_err(|error| named(certificate, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// What a failed handshake is about, in one sentence, where its error tells; the library's words else.
pub(super) fn words(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(CertificateError::Other(OtherError(refused)))) => refused.to_string(),
        Some(Error::NoCertificatesPresented) => {
            "the other side shows no certificate: set RINGWAY_TLS_CERT, RINGWAY_TLS_KEY and RINGWAY_TLS_CA there".to_owned()
        }
        Some(Error::AlertReceived(alert)) => format!(
            "the other side refuses this side's certificate ({alert:?}): it must be of an authority that is in \
             RINGWAY_TLS_CA there, and not have run out"
        ),
        Some(Error::InvalidMessage(_)) => {
            "the other side does not speak TLS: set RINGWAY_TLS_CERT, RINGWAY_TLS_KEY and RINGWAY_TLS_CA there too, or \
             nowhere"
                .to_owned()
        }
        Some(other) => other.to_string(),
        None => error.to_string(),
    }
}

/// An error of a handshake with [`words`] for its message; any other as it is.
pub(super) fn in_words(error: io::Error) -> io::Error {
    if is_tls(&error) { io::Error::new(error.kind(), words(&error)) } else { error }
}

/// Whether an error is one of TLS.
pub(super) fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Error>())
}
