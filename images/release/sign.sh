#!/usr/bin/env bash
# Signs what `make push` has pushed, without a key: the certificate names this workflow, and a public log has every signature. Attests what is
# in each image. Then verifies all of it as a user would; an error ends the release before there is a draft.
#
#     sign.sh v0.2.0
#
# Writes subjects.txt, the digests of files and images, for the attestation of where they were built.
set -euo pipefail
version=$1 release=${RELEASE:-bin/release} registry=${REGISTRY:-ghcr.io/pitcrew-dev}
signer=(--certificate-identity "https://github.com/$GITHUB_REPOSITORY/.github/workflows/release.yml@$GITHUB_REF"
    --certificate-oidc-issuer https://token.actions.githubusercontent.com)

digest() { skopeo inspect --no-tags --format '{{.Digest}}' "docker://$1"; }

(cd "$release" && cat checksums.txt && sha256sum checksums.txt) >subjects.txt
for name in npd-plugins plugins preflight remediator charts/pitcrew; do
    tag=$version
    [[ $name != charts/* ]] || tag=${version#v}
    digest=$(digest "$registry/$name:$tag")
    [[ $digest == sha256:* ]] || { echo "$registry/$name:$tag has no digest: \"$digest\"" >&2; exit 1; }
    echo "${digest#sha256:}  $registry/$name" >>subjects.txt
    cosign sign --yes --recursive "$registry/$name@$digest"
    cosign verify "${signer[@]}" "$registry/$name@$digest" >/dev/null
    [[ $name != charts/* ]] || continue
    for arch in amd64 arm64; do
        platform=$(skopeo inspect --no-tags --override-arch "$arch" --raw "docker://$registry/$name@$digest" |
            jq -er --arg arch "$arch" '.manifests[] | select(.platform.architecture == $arch) | .digest')
        cosign attest --yes --type cyclonedx --predicate "$release/$name-$arch.cdx.json" "$registry/$name@$platform"
        cosign verify-attestation --type cyclonedx "${signer[@]}" "$registry/$name@$platform" >/dev/null
    done
done
cosign sign-blob --yes --bundle "$release/checksums.txt.sigstore.json" "$release/checksums.txt"
cosign verify-blob "${signer[@]}" --bundle "$release/checksums.txt.sigstore.json" "$release/checksums.txt"
(cd "$release" && sha256sum --check --strict --quiet checksums.txt)
