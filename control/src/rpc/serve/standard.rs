//! Services that every gRPC port is expected to have: health (`grpc.health.v1`), which says that this one serves, and
//! reflection (`grpc.reflection`, both versions), by which tools such as grpcurl find out what can be called.

use ringway_proto::DESCRIPTORS;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

/// The services of ours that health is asked about by name. The empty name stands for the whole port.
const NAMES: [&str; 6] = [
    "",
    "ringway.rounds.v1.Rounds",
    "ringway.v1.SessionSetup",
    "ringway.v1.Status",
    "tensorflow.CoordinationService",
    "xla.coordination.CoordinationService",
];

/// Adds both to what a port has already, and says that the port serves. The reporter is to say when it no longer does.
pub(super) async fn add(routes: Routes) -> (Routes, HealthReporter) {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in NAMES {
        reporter.set_service_status(name, tonic_health::ServingStatus::Serving).await;
    }
    let mut routes = routes.add_service(health);
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(v1), Ok(v1alpha)) => routes = routes.add_service(v1).add_service(v1alpha),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "no gRPC reflection: the descriptors in this program are damaged");
        }
    }
    (routes, reporter)
}

/// Says that the port ends.
pub(super) async fn end(reporter: &HealthReporter) {
    for name in NAMES {
        reporter.set_service_status(name, tonic_health::ServingStatus::NotServing).await;
    }
}
