//! Who may take part: tokens and certificates, right ones and wrong ones, over real connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use ringway_control::core::coordination::CoordinatorConfig;
use ringway_control::rpc::client::{Agent, AgentConfig, AgentError, Process};
use ringway_control::rpc::credentials::Credentials;
use ringway_control::rpc::serve::{ServeError, Server, ServerConfig};
use ringway_control::rpc::tls::{Tls, TlsError};
use ringway_control::settings::{Settings, TlsFiles};
use ringway_topology::{HostId, Incarnation, TaskId};

/// Far longer than anything here takes: a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-for-the-tests-alone";

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn serve(credentials: Credentials) -> Server {
    let coordinator =
        CoordinatorConfig { heartbeat_limit: PATIENCE, ..CoordinatorConfig::one_job("worker", 4) };
    let config = ServerConfig { credentials, ..ServerConfig::new(coordinator, Incarnation(77)) };
    Server::start(local(), config).unwrap()
}

/// An agent that shows these credentials; `at` is the server's address as it calls it.
fn agent(at: String, index: u32, credentials: Credentials) -> Result<Agent, AgentError> {
    Agent::start(config(at, index, credentials))
}

fn config(at: String, index: u32, credentials: Credentials) -> AgentConfig {
    let process = Process {
        task: TaskId::new("worker", index).unwrap(),
        incarnation: Incarnation(500 + u64::from(index)),
        host: HostId::new("here", "boot").unwrap(),
        pid: 1000 + index,
    };
    AgentConfig { credentials, ..AgentConfig::new(at, process, PATIENCE) }
}

fn of_settings(pairs: &[(&str, &str)]) -> Credentials {
    Credentials::from_settings(&Settings::from_pairs(pairs.iter().copied()).unwrap()).unwrap()
}

fn token(text: &str) -> Credentials {
    of_settings(&[("RINGWAY_TOKEN", text)])
}

/// Reads until the other side closes.
fn ends(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    let kept = matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!kept, "the service keeps a stranger's connection");
}

#[test]
fn calls_without_the_token_are_refused_with_what_to_do() {
    let server = serve(token(TOKEN));
    let at = server.local_addr().to_string();
    let member = agent(at.clone(), 0, token(TOKEN)).unwrap();
    for (index, credentials, said) in [
        (1, Credentials::default(), "set RINGWAY_TOKEN or RINGWAY_TOKEN_FILE"),
        (2, token("another-token-than-that"), "the call's token is not the service's"),
        // A task that is there already, by somebody else.
        (0, token("another-token-than-that"), "the call's token is not the service's"),
    ] {
        let error = agent(at.clone(), index, credentials).unwrap_err();
        assert!(matches!(error, AgentError::Refused { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(said) && !error.contains(TOKEN), "{error}");
    }
    assert_eq!(member.kv_add("alive", 1), Ok(1));
    agent(at, 3, token(TOKEN)).unwrap().leave().unwrap();
    member.leave().unwrap();
}

#[test]
fn one_who_has_no_token_to_show_is_put_out_in_time() {
    let coordinator = CoordinatorConfig::one_job("worker", 1);
    let config = ServerConfig {
        credentials: token(TOKEN),
        handshake_timeout: Duration::from_millis(50),
        ..ServerConfig::new(coordinator, Incarnation(1))
    };
    let server = Server::start(local(), config).unwrap();
    let at = server.local_addr();
    let member = agent(at.to_string(), 0, token(TOKEN)).unwrap();
    // One that speaks HTTP/2 and then nothing, and one that is slow to begin.
    let mut quiet = TcpStream::connect(at).unwrap();
    quiet.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut slow = TcpStream::connect(at).unwrap();
    slow.write_all(b"PRI").unwrap();
    ends(quiet);
    ends(slow);
    // Who has shown it stays beyond that time.
    assert_eq!(member.kv_add("alive", 1), Ok(1));
    member.leave().unwrap();
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Who has shown the token with its only call, and says nothing more while it waits, is not put out. All that it says goes in
/// one write, so that nothing of it comes after the token was looked at.
#[test]
fn one_whose_first_call_waits_long_is_no_stranger() {
    let coordinator = CoordinatorConfig::one_job("worker", 1);
    let config = ServerConfig {
        credentials: token(TOKEN),
        // As long as a busy machine may take to look at what was said.
        handshake_timeout: Duration::from_secs(1),
        ..ServerConfig::new(coordinator, Incarnation(1))
    };
    let server = Server::start(local(), config).unwrap();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/tensorflow.CoordinationService/GetKeyValue"),
        (":authority", "x"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("authorization", &format!("Bearer {TOKEN}")),
    ];
    // Literals without an index (RFC 7541, section 6.2.2).
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let headers: Vec<u8> =
        headers.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect();
    let asked = b"\0\0\0\0\x07\x0a\x05never";
    let said = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(4, 1, 0, &[]),
        frame(1, 4, 1, &headers),
        frame(0, 1, 1, asked),
    ];
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.write_all(&said.concat()).unwrap();
    // Two strangers that came after it were put out, one after the other: its own time is long over.
    for _ in 0..2 {
        ends(TcpStream::connect(server.local_addr()).unwrap());
    }
    stream.set_nonblocking(true).unwrap();
    let ended = stream.read_to_end(&mut Vec::new());
    assert!(matches!(&ended, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock), "put out: {ended:?}");
}

#[test]
fn strangers_of_one_address_leave_places_for_others() {
    let coordinator = CoordinatorConfig::one_job("worker", 1);
    let config = ServerConfig { connections_limit: 8, ..ServerConfig::new(coordinator, Incarnation(1)) };
    let server = Server::start(local(), config).unwrap();
    let at = server.local_addr();
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(at).unwrap()).collect();
    // In the order in which they come, so the fifth finds four.
    ends(TcpStream::connect(at).unwrap());
    drop(silent);
    let member = agent(at.to_string(), 0, Credentials::default());
    assert_eq!(member.unwrap().kv_add("alive", 1), Ok(1));
}

#[test]
fn a_port_that_everybody_reaches_needs_a_word() {
    let config = || ServerConfig::new(CoordinatorConfig::one_job("worker", 1), Incarnation(1));
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let error = Server::start(everywhere, config()).unwrap_err();
    assert!(matches!(error, ServeError::Open { .. }), "{error}");
    assert!(error.to_string().contains("--insecure"), "{error}");
    drop(Server::start(everywhere, ServerConfig { insecure: true, ..config() }).unwrap());
    drop(Server::start(everywhere, ServerConfig { credentials: token(TOKEN), ..config() }).unwrap());
}

/// Files of certificates, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ringway-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A certificate for `names` by `authority`, and those whom its owner trusts.
    fn files(&self, who: &str, names: &[&str], authority: &Authority, trusted: &Authority) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        TlsFiles {
            certificate: self.write(&format!("{who}.crt"), &certificate.pem()),
            key: self.write(&format!("{who}.key"), &key.serialize_pem()),
            authorities: self.write(&format!("{who}.ca"), &trusted.pem),
            name: None,
            settings: ["RINGWAY_TLS_CERT", "RINGWAY_TLS_KEY", "RINGWAY_TLS_CA"],
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { issuer: Issuer::new(params, key), pem }
}

fn show(files: &TlsFiles) -> Credentials {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key, authorities) =
        (text(&files.certificate), text(&files.key), text(&files.authorities));
    let mut pairs = vec![
        ("RINGWAY_TLS_CERT", certificate.as_str()),
        ("RINGWAY_TLS_KEY", &key),
        ("RINGWAY_TLS_CA", &authorities),
    ];
    pairs.extend(files.name.as_deref().map(|name| ("RINGWAY_TLS_NAME", name)));
    of_settings(&pairs)
}

#[test]
fn only_certificates_of_the_authority_are_taken() {
    let folder = Folder::new("taken");
    let (ours, others) = (authority(), authority());
    let server = serve(show(&folder.files("server", &["localhost", "node7"], &ours, &ours)));
    let port = server.local_addr().port();
    let at = |host: &str| format!("{host}:{port}");
    let member = agent(at("localhost"), 0, show(&folder.files("member", &["node1"], &ours, &ours))).unwrap();
    let refused = |host: &str, credentials, said: &[&str]| {
        let error = agent(at(host), 1, credentials).unwrap_err().to_string();
        assert!(said.iter().all(|said| error.contains(said)), "{error}");
    };
    refused("localhost", Credentials::default(), &["the coordinator wants TLS", "RINGWAY_TLS_CERT"]);
    // The server's certificate, seen by the client: another authority, another name.
    let doubter = folder.files("doubter", &["node2"], &ours, &others);
    refused("localhost", show(&doubter), &["node7", "of another authority"]);
    refused("127.0.0.1", show(&folder.files("caller", &["node2"], &ours, &ours)), &["node7", "was refused"]);
    // The client's, seen by the server.
    let stranger = folder.files("stranger", &["node66"], &others, &ours);
    refused("localhost", show(&stranger), &["refuses this side's certificate"]);
    // A name for all servers, whatever they are called by.
    let named =
        TlsFiles { name: Some("node7".to_owned()), ..folder.files("named", &["node3"], &ours, &ours) };
    agent(at("127.0.0.1"), 3, show(&named)).unwrap().leave().unwrap();
    assert_eq!(member.kv_add("alive", 1), Ok(1));
    // Neither speaks another's language.
    let plain = serve(Credentials::default());
    let mut config = config(plain.local_addr().to_string(), 0, show(&named));
    config.times.register_timeout = Duration::from_millis(300);
    let error = Agent::start(config).unwrap_err().to_string();
    // By what its server says first, or by the end of the connection.
    assert!(error.contains("does not speak TLS") || error.contains("serves without TLS"), "{error}");
    member.leave().unwrap();
}

#[test]
fn certificates_are_read_again_and_connections_go_on() {
    let folder = Folder::new("again");
    let (before, after) = (authority(), authority());
    let credentials = show(&folder.files("server", &["localhost"], &before, &before));
    let server = serve(credentials.clone());
    let at = format!("localhost:{}", server.local_addr().port());
    let old = show(&folder.files("old", &["a"], &before, &before));
    let member = agent(at.clone(), 0, old.clone()).unwrap();
    // Files that do not fit leave what was read before in force.
    let mixed = folder.files("server", &["localhost"], &after, &after);
    let key = std::fs::read_to_string(&mixed.key).unwrap();
    std::fs::write(&mixed.key, "not a key").unwrap();
    let error = credentials.tls().unwrap().reload().unwrap_err();
    assert!(matches!(error, TlsError::File { setting: "RINGWAY_TLS_KEY", .. }), "{error}");
    agent(at.clone(), 1, old.clone()).unwrap().leave().unwrap();
    std::fs::write(&mixed.key, key).unwrap();
    credentials.tls().unwrap().reload().unwrap();
    assert!(agent(at.clone(), 2, old).is_err());
    agent(at, 3, show(&folder.files("new", &["b"], &after, &after))).unwrap().leave().unwrap();
    assert_eq!(member.kv_add("alive", 1), Ok(1));
    member.leave().unwrap();
}

#[test]
fn files_that_have_changed_are_noticed() {
    let folder = Folder::new("changed");
    let (before, after) = (authority(), authority());
    let tls = Tls::load(folder.files("one", &["before"], &before, &before)).unwrap();
    assert!(!tls.look().unwrap() && tls.names().starts_with("before"));
    // Renewed in two steps, between which they do not fit: told once, and those before stay.
    let renewed = folder.files("one", &["after-all"], &after, &after);
    let key = std::fs::read_to_string(&renewed.key).unwrap();
    std::fs::write(&renewed.key, "").unwrap();
    assert!(tls.look().is_err());
    assert!(!tls.look().unwrap() && tls.names().starts_with("before"));
    std::fs::write(&renewed.key, key).unwrap();
    assert!(tls.look().unwrap() && tls.names().starts_with("after-all"));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = Folder::new("files");
    let (ours, others) = (authority(), authority());
    let sound = folder.files("one", &["a"], &ours, &ours);
    let other = folder.files("two", &["a"], &others, &ours);
    let empty = folder.write("empty", "");
    let said = |files: TlsFiles| Tls::load(files).unwrap_err().to_string();
    let error = said(TlsFiles { certificate: empty.clone(), ..sound.clone() });
    assert!(error.contains("RINGWAY_TLS_CERT") && error.contains("holds no certificate"), "{error}");
    let error = said(TlsFiles { authorities: "/nowhere".into(), ..sound.clone() });
    assert!(error.contains("RINGWAY_TLS_CA") && error.contains("/nowhere"), "{error}");
    assert!(said(TlsFiles { key: empty, ..sound.clone() }).contains("RINGWAY_TLS_KEY"));
    assert!(said(TlsFiles { key: other.key, ..sound.clone() }).contains("cannot be used"));
    assert!(said(TlsFiles { name: Some("no name".into()), ..sound }).contains("RINGWAY_TLS_NAME"));
}
