// Package site looks at what `make site` has made: every link has a target, and a browser shows the pages and finds words in them.
package site

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// made is where `make site` puts the site.
const made = "../bin/site"

// repository is where links to files of the repository lead.
const repository = "https://github.com/pitcrew-dev/pitcrew/blob/main/"

var shots = flag.String("shots", "", "`folder` for screenshots of some pages")

var (
	link     = regexp.MustCompile(`(?:href|src)="?([^" >]+)`)
	id       = regexp.MustCompile(` id="?([^" >]+)`)
	indexURL = regexp.MustCompile(`"u":"([^"]+)"`)
)

// files are the files of the site by their path in it.
func files(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := filepath.WalkDir(made, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		found[strings.TrimPrefix(name, made+"/")] = string(text)
		return err
	}); err != nil {
		t.Fatalf("run make site: %v", err)
	}
	return found
}

// dead returns an error if a link of a page leads to no page, to no heading, or to no file of the repository.
func dead(site map[string]string, from, href string) error {
	if file, ok := strings.CutPrefix(href, repository); ok {
		file, _, _ = strings.Cut(file, "#")
		_, err := os.Stat(filepath.Join("..", file))
		return err
	}
	u, err := url.Parse(href)
	if err != nil || u.Scheme != "" {
		return err
	}
	target := from
	if u.Path != "" {
		target = path.Join(path.Dir(from), u.Path)
	}
	text, ok := site[target]
	if !ok {
		return errors.New("there is no such page")
	}
	if u.Fragment == "" {
		return nil
	}
	for _, m := range id.FindAllStringSubmatch(text, -1) {
		if m[1] == u.Fragment {
			return nil
		}
	}
	return errors.New("the page has no such heading")
}

func TestNoLinkIsDead(t *testing.T) {
	site := files(t)
	pages, links := 0, 0
	check := func(from, href string) {
		links++
		if err := dead(site, from, strings.ReplaceAll(href, "&#43;", "+")); err != nil {
			t.Errorf("%s links to %s: %v", from, href, err)
		}
	}
	for name, text := range site {
		if path.Ext(name) != ".html" {
			continue
		}
		pages++
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			check(name, m[1])
		}
	}
	for _, m := range indexURL.FindAllStringSubmatch(site["search-index.js"], -1) {
		check("search-index.js", m[1])
	}
	if pages < 100 || links < 5000 {
		t.Errorf("only %d pages with %d links", pages, links)
	}
}

func TestADeadLinkIsFound(t *testing.T) {
	site := map[string]string{"a.html": `<h2 id="here">`, "adr/b.html": ""}
	for href, alive := range map[string]bool{
		"#here": true, "#there": false, "adr/b.html": true, "b.html": false, "adr/b.html#x": false, repository + "README.md#x": true,
		repository + "docs/none.md": false, "https://example.com": true,
	} {
		if err := dead(site, "a.html", href); (err == nil) != alive {
			t.Errorf("%s: %v", href, err)
		}
	}
}

// view is what the browser says about a page.
type view struct {
	// Wide is how many pixels the page is wider than the window.
	Wide       float64
	Background string
	// Menu reports that the menu is beside the page, Opens that one click on its label shows and hides it.
	Menu, Opens bool
	Results     []string
}

const look = `(async () => {
	const input = document.getElementById("search");
	input.focus();
	input.value = WORDS;
	input.dispatchEvent(new Event("input"));
	for (let i = 0; i < 200 && document.getElementById("results").hidden; i++) await new Promise((r) => setTimeout(r, 25));
	const results = [...document.querySelectorAll("#results a")].map((a) => a.href.split("/").pop());
	const nav = document.querySelector("nav"), label = document.querySelector("label[for=menu]"), heights = [nav.offsetHeight];
	for (let i = 0; i < 2; i++) { label.click(); heights.push(nav.offsetHeight); }
	if (!KEEP) { input.value = ""; input.dispatchEvent(new Event("input")); }
	return {
		Wide: document.documentElement.scrollWidth - innerWidth, Background: getComputedStyle(document.body).backgroundColor,
		Menu: nav.offsetHeight > 0 && nav.getBoundingClientRect().right < document.querySelector("main").getBoundingClientRect().left,
		Opens: heights[0] == 0 && heights[1] > 0 && heights[2] == 0, Results: results,
	};
})()`

// From a folder, without a server and without a network.
func TestTheBrowserShowsTheSite(t *testing.T) {
	ctx := browser(t)
	root, err := filepath.Abs(made)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		page, scheme string
		width        int64
		words, first string
		keep         bool
	}{
		{"index.html", "light", 1400, "wrong quarantine", "", true},
		{"policy.html", "dark", 1400, "budget maxPercent", "", false},
		{"conditions.html", "light", 390, "fallen off the bus", "", false},
		{"troubleshooting.html", "dark", 390, "xyzzy", "none", true},
		{"adr/index.html", "light", 800, "glossary", "glossary.html", false},
	} {
		v := show(t, ctx, "file://"+filepath.Join(root, c.page), c.scheme, c.width, c.words, c.keep)
		if v.Wide > 0 {
			t.Errorf("%s is %v pixels too wide for a window of %d", c.page, v.Wide, c.width)
		}
		if v.Menu != (c.width > 768) || v.Opens == v.Menu {
			t.Errorf("%s in a window of %d: the menu is beside the page: %t, a click opens it: %t", c.page, c.width, v.Menu, v.Opens)
		}
		if light := v.Background == "rgb(255, 255, 255)"; light != (c.scheme == "light") {
			t.Errorf("%s on a %s screen: background %s", c.page, c.scheme, v.Background)
		}
		if (len(v.Results) == 0) != (c.first == "none") || strings.HasSuffix(c.first, ".html") && v.Results[0] != c.first {
			t.Errorf("%s: a search for %q finds %q", c.page, c.words, v.Results)
		}
	}
}

func show(t *testing.T, ctx context.Context, address, scheme string, width int64, words string, keep bool) view {
	t.Helper()
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900),
		chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
			_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Media: "screen", Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			return err
		}),
		chromedp.Navigate(address))
	if err != nil {
		t.Fatal(err)
	}
	kept := map[bool]string{true: "true", false: "false"}[keep]
	v, err := chromedp.Run(ctx, chromedp.Evaluate[view](strings.NewReplacer("WORDS", `"`+words+`"`, "KEEP", kept).Replace(look), chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	if *shots == "" {
		return v
	}
	shot, err := chromedp.Run(ctx, func(ctx context.Context, tab *chromedp.Target) ([]byte, error) {
		r, err := cdp.Call(ctx, tab, page.CaptureScreenshot, page.CaptureScreenshotParams{})
		return r.Data, err
	})
	if err == nil {
		_, name, _ := strings.Cut(address, "bin/site/")
		err = os.WriteFile(filepath.Join(*shots, strings.ReplaceAll(name, "/", "-")+"-"+scheme+".png"), shot, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// browser starts Chromium.
func browser(t *testing.T) context.Context {
	t.Helper()
	name := ""
	for _, candidate := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if found, err := exec.LookPath(candidate); err == nil && name == "" {
			name = found
		}
	}
	if name == "" {
		t.Fatal("no Chromium: run make chromium")
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(name), chromedp.NoSandbox, chromedp.DisableGPU)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
