//! The endpoint that Prometheus scrapes: `GET /metrics` over HTTP/1.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Page, is_local};
use crate::core::status::prometheus;
use crate::settings::HostPort;

/// Connections at once; further ones are closed when they come.
const CONNECTIONS_LIMIT: usize = 16;
/// A request's head is there within this time, or not.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// A connection lasts no longer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Longest head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// Pause after the system refused to hand out a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens; returns where.
///
/// # Errors
/// When the address cannot be had.
pub async fn bind(at: &HostPort) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((at.host.as_str(), at.port)).await?;
    let address = listener.local_addr()?;
    if !is_local(&address) {
        tracing::info!(
            "metrics at {address} are open to the network, without encryption, as RINGWAY_METRICS_BIND asks"
        );
    }
    Ok((listener, address))
}

/// Answers for ever.
pub async fn serve(listener: TcpListener, page: &Page) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_LIMIT));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::debug!(%from, "closing a connection: as many ask for metrics as may");
            continue;
        };
        let page = page.clone();
        tokio::spawn(async move {
            // Who is slower goes without.
            if let Ok(Err(error)) = timeout(CONNECTION_LIMIT, answer(stream, page)).await {
                tracing::debug!(%from, %error, "asked for metrics");
            }
            drop(place);
        });
    }
}

async fn answer(stream: TcpStream, page: Page) -> hyper::Result<()> {
    let service = service_fn(move |request| respond(request, page.clone()));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn respond(request: Request<Incoming>, page: Page) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = match status {
            StatusCode::OK => prometheus::CONTENT_TYPE,
            _ => "text/plain; charset=utf-8",
        };
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    };
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => text(StatusCode::OK, page().await),
        (&Method::GET | &Method::HEAD, _) => {
            text(StatusCode::NOT_FOUND, "metrics are at /metrics\n".to_owned())
        }
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n".to_owned());
            response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            response
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn metrics_are_answered_and_nothing_else() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        let (listener, address) = runtime.block_on(bind(&at)).unwrap();
        runtime.spawn(async move {
            let page: Page = Arc::new(|| Box::pin(async { "ringway_peers 1\n".to_owned() }));
            serve(listener, &page).await;
        });
        let ask = |request: &str| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer.to_lowercase()
        };
        let good = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("http/1.1 200 ok\r\n"), "{good}");
        assert!(good.contains("content-type: text/plain; version=0.0.4"), "{good}");
        assert!(good.ends_with("\r\n\r\nringway_peers 1\n"), "{good}");
        assert!(ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("http/1.1 404 "));
        let post = ask("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert!(post.starts_with("http/1.1 405 ") && post.contains("allow: get, head"), "{post}");
        assert!(ask("nonsense\r\n\r\n").starts_with("http/1.1 400 "));
    }
}
