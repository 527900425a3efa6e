package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tools are stand-ins. They write down how they were called; cosign refuses what REFUSE names.
var tools = map[string]string{
	"skopeo": `case "$*" in
*--raw*) echo '{"manifests": [{"digest": "sha256:amd", "platform": {"architecture": "amd64"}}, {"digest": "sha256:arm", "platform": {"architecture": "arm64"}}]}' ;;
*) echo "${DIGEST-sha256:index}" ;;
esac`,
	"cosign": `echo "$*" >>"$CALLS"
case "$*" in "${REFUSE-nothing} "*) exit 1 ;; esac
case "$1" in sign-blob) touch "$4" ;; esac`,
	"jq": `cat >/dev/null
case "$*" in *amd64*) echo sha256:amd ;; *) echo sha256:arm ;; esac`,
}

// sign runs the script and returns the calls of cosign.
func sign(t *testing.T, env ...string) (calls []string, dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	release := filepath.Join(dir, "release")
	if err := os.MkdirAll(release, 0o755); err != nil {
		t.Fatal(err)
	}
	const sums = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  policy.yaml\n"
	for name, text := range map[string]string{"release/policy.yaml": "", "release/checksums.txt": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range tools {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs("sign.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, version)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, "PATH="+dir+":"+os.Getenv("PATH"), "RELEASE=release", "CALLS="+filepath.Join(dir, "calls"),
		"GITHUB_REPOSITORY=pitcrew-dev/pitcrew", "GITHUB_REF=refs/tags/"+version)...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	text, _ := os.ReadFile(filepath.Join(dir, "calls"))
	return strings.Split(strings.TrimSpace(string(text)), "\n"), dir, err
}

func TestWhatIsSignedIsVerified(t *testing.T) {
	calls, dir, err := sign(t)
	if err != nil {
		t.Fatal(err)
	}
	const signer = "--certificate-identity https://github.com/pitcrew-dev/pitcrew/.github/workflows/release.yml@refs/tags/" + version +
		" --certificate-oidc-issuer https://token.actions.githubusercontent.com"
	for _, want := range []string{
		"sign --yes --recursive ghcr.io/pitcrew-dev/remediator@sha256:index",
		"verify " + signer + " ghcr.io/pitcrew-dev/charts/pitcrew@sha256:index",
		"attest --yes --type cyclonedx --predicate release/preflight-arm64.cdx.json ghcr.io/pitcrew-dev/preflight@sha256:arm",
		"verify-attestation --type cyclonedx " + signer + " ghcr.io/pitcrew-dev/plugins@sha256:amd",
		"verify-blob " + signer + " --bundle release/checksums.txt.sigstore.json release/checksums.txt",
	} {
		if !slices.Contains(calls, want) {
			t.Errorf("cosign was not called as in %q", want)
		}
	}
	subjects := read(t, filepath.Join(dir, "subjects.txt"))
	for _, want := range append(slices.Clone(images), "charts/pitcrew", "policy.yaml") {
		if !strings.Contains(subjects, want+"\n") {
			t.Errorf("subjects.txt lacks %s", want)
		}
	}
	// What the workflow verifies on GitHub is what it has attested there.
	verified := regexp.MustCompile(`gh attestation verify bin/release/(\S+)`).FindStringSubmatch(read(t, filepath.Join(root, ".github/workflows/release.yml")))
	if verified == nil {
		t.Fatal("the workflow verifies no file")
	}
	sum := sha256.Sum256([]byte(read(t, filepath.Join(dir, "release", verified[1]))))
	if want := fmt.Sprintf("%x  %s\n", sum, verified[1]); !strings.Contains(subjects, want) {
		t.Errorf("subjects.txt lacks %s, which the workflow verifies:\n%s", want, subjects)
	}
}

// A release ends before its draft when the registry has no digest, or anything cannot be verified.
func TestWhatCannotBeVerifiedIsNoRelease(t *testing.T) {
	for _, env := range []string{"DIGEST=", "REFUSE=sign", "REFUSE=verify", "REFUSE=verify-attestation", "REFUSE=verify-blob"} {
		if _, _, err := sign(t, env); err == nil {
			t.Errorf("with %s: no error", env)
		}
	}
	workflow := read(t, filepath.Join(root, ".github/workflows/release.yml"))
	at := 0
	for _, step := range []string{"make push", "images/release/sign.sh", "attest-build-provenance", "gh attestation verify", "make draft"} {
		found := strings.Index(workflow[at:], step)
		if found < 0 {
			t.Fatalf("no %q after the steps before it", step)
		}
		at += found
	}
}
