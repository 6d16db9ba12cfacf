#!/usr/bin/env bash
# Makes verbs_h.rs, the types and the table of functions of libibverbs, from rdma-core's public header.
#
#   dataplane/src/rdma/verbs/generated/generate.sh [HEADER]
#
# Needs the header (Debian: libibverbs-dev, Fedora: rdma-core-devel), libclang, and `cargo install bindgen-cli
# --version 0.72.1`. The committed file was made from rdma-core 44 on x86_64. A build needs none of these: the
# functions are found at run time, in whatever libibverbs.so.1 the machine has.
set -euo pipefail

header=${1:-/usr/include/infiniband/verbs.h}
here=$(cd "$(dirname "$0")" && pwd)
out=$here/verbs_h.rs

functions=(
    ibv_get_device_list ibv_free_device_list ibv_open_device ibv_close_device ibv_fork_init
    ibv_query_device ibv_query_port ibv_query_gid _ibv_query_gid_table ibv_query_pkey
    ibv_get_async_event ibv_ack_async_event
    ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_reg_mr_iova2 ibv_reg_dmabuf_mr ibv_dereg_mr
    ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event ibv_ack_cq_events
    ibv_create_cq ibv_resize_cq ibv_destroy_cq
    ibv_create_srq ibv_modify_srq ibv_destroy_srq
    ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp
    ibv_create_ah ibv_destroy_ah
)
types=(verbs_context ibv_gid_entry ibv_gid_type ibv_wc ibv_wc_flags ibv_send_flags ibv_access_flags
    ibv_qp_attr_mask ibv_srq_attr_mask ibv_port_state)
variables=(IBV_LINK_LAYER_.\* IBV_ACCESS_OPTIONAL_.\*)
# Reached through function pointers that are never called here: only their address width matters.
opaque=(ibv_flow ibv_flow_attr ibv_flow_action ibv_flow_action_esp_attr ibv_counters ibv_counters_init_attr
    ibv_counter_attach_attr ibv_dm ibv_alloc_dm_attr ibv_qp_rate_limit_attr ibv_parent_domain_init_attr
    ibv_td ibv_td_init_attr ibv_modify_cq_attr ibv_ops_wr ibv_rwq_ind_table ibv_rwq_ind_table_init_attr
    ibv_wq ibv_wq_attr ibv_wq_init_attr ibv_values_ex ibv_cq_ex ibv_cq_init_attr_ex verbs_ex_private
    ibv_query_device_ex_input ibv_device_attr_ex ibv_qp_open_attr ibv_qp_init_attr_ex ibv_srq_init_attr_ex
    ibv_xrcd ibv_xrcd_init_attr ibv_mw_bind ibv_mw)

arguments=()
for name in "${functions[@]}"; do arguments+=(--allowlist-function "$name"); done
for name in "${types[@]}"; do arguments+=(--allowlist-type "$name"); done
for name in "${variables[@]}"; do arguments+=(--allowlist-var "$name"); done
for name in "${opaque[@]}"; do arguments+=(--opaque-type "$name"); done

bindgen "$header" -o "$out" \
    --dynamic-loading Verbs \
    --rust-edition 2024 --rust-target 1.85 \
    --use-core --default-enum-style consts --no-prepend-enum-name --no-doc-comments --generate-cstr \
    --blocklist-type 'pthread_.*' --blocklist-type '__pthread.*' --blocklist-type '__atomic_wide_counter.*' \
    --raw-line '//! Made by generate.sh beside this file from infiniband/verbs.h of rdma-core: change that, not this.' \
    --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t};' \
    "${arguments[@]}" \
    -- -isystem "$(cc -print-file-name=include)" # stddef.h, where clang's own is not installed

# The sizes were measured on x86_64; a mutex and a condition have others elsewhere, and every type follows the
# rules of C there too.
sed -i 's/^const _: () = {$/#[cfg(target_arch = "x86_64")]\n&/' "$out"
