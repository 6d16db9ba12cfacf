//! Who may take part, with the programs that users start: a service with certificates and a token, its ranks, those who only
//! look, and those who have something else to show; and etcd in TLS.

use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::Signal;

use crate::failover::etcd;
use crate::ports::free_ports;
use crate::process::{Folder, Run, example, ringway};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    file: String,
}

impl Authority {
    fn new(folder: &Folder, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let file = folder.file(&format!("{name}.ca"), &params.self_signed(&key).unwrap().pem());
        Authority { issuer: Issuer::new(params, key), file }
    }

    /// Writes a certificate for a process of this host that is called `name`, and its key.
    fn certify(&self, folder: &Folder, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names = [name, "localhost", "127.0.0.1"].map(str::to_owned);
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let (file, key_file) = (format!("{name}.crt"), format!("{name}.key"));
        (folder.file(&file, &certificate.pem()), folder.file(&key_file, &key.serialize_pem()))
    }

    /// The settings of a process with such a certificate, which trusts this authority.
    fn settings(&self, folder: &Folder, name: &str) -> [(&'static str, String); 3] {
        let (certificate, key) = self.certify(folder, name);
        [("RINGWAY_TLS_CERT", certificate), ("RINGWAY_TLS_KEY", key), ("RINGWAY_TLS_CA", self.file.clone())]
    }
}

/// What `ringway status` says, and whether it was answered.
fn look(coordinator: &str, settings: &[(&str, String)]) -> (bool, String) {
    let mut command = ringway(&["status", "--coordinator", coordinator, "--timeout-ms", "5000"]);
    let out = command.envs(settings.iter().map(|(name, value)| (*name, value))).output().expect("it runs");
    let said = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8(said).expect("text"))
}

fn token() -> (&'static str, String) {
    ("RINGWAY_TOKEN", TOKEN.to_owned())
}

#[test]
fn a_secured_service_has_its_ranks_and_onlookers_and_nobody_else() {
    let folder = Folder::new("secured");
    let (ours, others) = (Authority::new(&folder, "ours"), Authority::new(&folder, "others"));
    let (at, stop) = (format!("127.0.0.1:{}", free_ports(1)), folder.path_of("stop"));
    let of_server = ours.settings(&folder, "server");
    let mut command = ringway(&["serve", "--ranks", "2", "--bind", &at]);
    command.envs(of_server.iter().cloned()).envs([token()]);
    let server = Run::start(command);
    assert!(server.error_line().contains("coordination of 2 ranks"));
    let mut with = ours.settings(&folder, "member").to_vec();
    with.push(token());
    let mut command =
        ringway(&["run", "-n", "2", "--coordinator", &at, "--", example("failover"), "0", &stop]);
    command.envs(with.iter().cloned());
    let ranks = Run::start(command);
    assert_eq!(ranks.line(), "round 1");

    let (known, said) = look(&at, &with);
    assert!(known && said.contains("2 of 2 tasks connected"), "{said}");
    // Each is refused by what it lacks.
    let strangers = [
        (vec![token()], "the coordinator wants TLS"),
        (with[..3].to_vec(), "set RINGWAY_TOKEN"),
        (
            [&with[..3], &[("RINGWAY_TOKEN", TOKEN.to_uppercase())]].concat(),
            "the call's token is not the service's",
        ),
        (
            [&others.settings(&folder, "stranger")[..2], &with[2..]].concat(),
            "refuses this side's certificate",
        ),
    ];
    for (settings, why) in &strangers {
        let (known, said) = look(&at, settings);
        assert!(!known && said.contains(why), "{why}: {said}");
    }
    // So is a rank that is there already, by somebody without the token.
    let mut impostor = crate::process::command(example("failover"));
    impostor.args(["1"]).envs(with[..3].iter().cloned());
    impostor.envs([("RINGWAY_RANK", "0"), ("RINGWAY_WORLD_SIZE", "2"), ("RINGWAY_COORDINATOR", at.as_str())]);
    impostor.env("RINGWAY_COORDINATOR_BY", "outside");
    let end = Run::start(impostor).end();
    assert!(end.code() != 0 && end.stderr.contains("set RINGWAY_TOKEN"), "{}", end.stderr);

    // Another certificate of the server: whoever is connected goes on.
    ours.certify(&folder, "server");
    server.signal(Signal::HUP);
    let mut told = 0;
    let line = loop {
        let line = server.error_line();
        if line.contains("certificates read again") {
            break line;
        }
        told += 1;
        assert!(line.contains("WARN"), "{line}");
    };
    assert!(line.contains("server"), "{line}");
    assert_eq!(told, 1, "all of them come from one address");
    let (known, said) = look(&at, &with);
    assert!(known && said.contains("2 of 2 tasks connected"), "{said}");
    std::fs::write(&stop, "").unwrap();
    assert_eq!(ranks.end().code(), 0);
    server.signal(Signal::TERM);
    let end = server.end();
    assert_eq!(end.code(), 0, "{}", end.stderr);
}

/// One member of etcd, in TLS, that wants certificates of `authority`.
fn etcd_in_tls(folder: &Folder, authority: &Authority) -> Option<(Run, u16)> {
    let (client, peer) = (free_ports(1), free_ports(1));
    let (certificate, key) = authority.certify(folder, "etcd");
    let (at, peer) = (format!("https://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut command = Command::new(etcd()?);
    command
        .args(["--name", "m0", "--data-dir", &folder.path_of("m0")])
        .args(["--listen-client-urls", &at, "--advertise-client-urls", &at])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("m0={peer}"), "--initial-cluster-state", "new"])
        .args(["--cert-file", &certificate, "--key-file", &key])
        .args(["--client-cert-auth", "--trusted-ca-file", &authority.file])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Some((Run::start(command), client))
}

#[test]
fn a_candidate_shows_etcd_its_certificate() {
    let folder = Folder::new("etcds");
    let (ours, others) = (Authority::new(&folder, "ours"), Authority::new(&folder, "others"));
    let Some((_etcd, port)) = etcd_in_tls(&folder, &ours) else { return };
    let store = format!("etcds://127.0.0.1:{port}");
    let candidate = |store: &str, name: &str, shown: Option<&Authority>| {
        let bind = format!("127.0.0.1:{}", free_ports(1));
        let mut command = ringway(&["serve", "--ranks", "1", "--bind", &bind, "--store", store]);
        if let Some(authority) = shown {
            let (certificate, key) = authority.certify(&folder, name);
            command.args(["--store-cert", &certificate, "--store-key", &key, "--store-ca", &ours.file]);
        }
        command.env("RINGWAY_LOG", "info");
        Run::start(command)
    };
    let says = |run: &Run, words: &str| {
        while !run.error_line().contains(words) {}
    };
    let leader = candidate(&store, "leader", Some(&ours));
    says(&leader, "leads, from revision");
    let refused = candidate(&store, "stranger", Some(&others));
    says(&refused, "; trying again");
    // Neither begins with what does not go together.
    let end = candidate(&store, "bare", None).end();
    assert!(end.code() == 125 && end.stderr.contains("etcds:// needs certificates"), "{}", end.stderr);
    let end = candidate(&store.replace("etcds", "etcd"), "plain", Some(&ours)).end();
    assert!(end.code() == 125 && end.stderr.contains("is for etcds://"), "{}", end.stderr);
    for run in [leader, refused] {
        run.signal(Signal::TERM);
        assert_eq!(run.end().code(), 0);
    }
}
