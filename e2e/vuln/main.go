// Command vuln runs govulncheck on packages of this repository. It fails when they call a function with a known
// vulnerability. When the vulnerability database cannot be reached it prints that nothing was checked, and does not fail:
// a build without network beyond the package registries must pass.
//
//	go run ./e2e/vuln ./remediator ./plugins/...
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func main() {
	db := flag.String("db", "https://vuln.go.dev", "`URL` of the vulnerability database")
	dir := flag.String("C", ".", "`folder` of the module")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := check(ctx, os.Stdout, *db, *dir, flag.Args()...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

// check builds govulncheck and runs it in dir. Its answer goes to out.
func check(ctx context.Context, out io.Writer, db, dir string, packages ...string) error {
	if err := reachable(ctx, db); err != nil {
		_, err := fmt.Fprintf(out, "vuln: the vulnerability database cannot be reached, nothing was checked: %v\n", err)
		return err
	}
	root, err := components.Root()
	if err != nil {
		return err
	}
	if err := components.Build(ctx, os.Stderr, root, components.Govulncheck); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, components.Govulncheck.Path(root), append([]string{"-C", dir, "-db", db}, packages...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("govulncheck %s: %w", strings.Join(packages, " "), err) // exit status 3: vulnerabilities
	}
	return nil
}

// reachable asks the database for the time of its last change (https://go.dev/security/vuln/database#api).
func reachable(ctx context.Context, db string) error {
	if strings.HasPrefix(db, "file://") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(db, "/")+"/index/db.json", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return nil
}
