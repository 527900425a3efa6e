package view

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// shots keeps what the browser has drawn, to look at it.
var shots = flag.String("shots", "", "`folder` for the screenshots of the samples")

const (
	// wide is the width of the window in CSS pixels, tall the largest height of a screenshot.
	wide, tall = 1280, 1200
	// dense is the number of pixels per CSS pixel: with 2, thin letters reach their colour.
	dense = 2
	// minContrast is what WCAG 2.1 AA asks of text.
	minContrast = 4.5
)

// samples are runs of every form, each with its headline and its nodes with the worst colour.
var samples = map[string]struct {
	run      Run
	headline string
	bad      []string
	modes    []string
}{
	"healthy-8":   {sample(simulate.Scenario{Nodes: 8}, 1), "All 8 nodes are healthy: none is slow, none has failed", nil, everywhere},
	"slow-12":     {sample(simulate.Scenario{Nodes: 12, Slow: 1, Drop: 0.4}, 3), "1 of 12 nodes is slow: node-00010, 41 % below the median", []string{"node-00010"}, everywhere},
	"slow-24":     {sample(simulate.Scenario{Nodes: 24, Slow: 1, Drop: 0.4}, 1), "1 of 24 nodes is slow: node-00004, 40 % below the median", []string{"node-00004"}, everywhere},
	"slow-leaf":   {sample(simulate.Scenario{Nodes: 24, Slow: 8, Rack: true, Drop: 0.4}, 1), "Switch leaf-0000 is a suspect: 8 of its 8 nodes are slow", []string{"node-00000", "node-00001", "node-00002", "node-00003", "node-00004", "node-00005", "node-00006", "node-00007"}, everywhere},
	"sparse-64":   {sample(simulate.Scenario{Nodes: 64, Slow: 1, Drop: 0.4}, 17), "1 of 64 nodes is slow: node-00000, 41 % below the median", []string{"node-00000"}, everywhere},
	"nodes-200":   {sample(simulate.Scenario{Nodes: 200, Slow: 2, Drop: 0.4}, 17), "2 of 200 nodes are slow: node-00144 (40 % below the median) and node-00187 (40 % below the median)", []string{"node-00144", "node-00187"}, everywhere},
	"nodes-1000":  {sample(simulate.Scenario{Nodes: 1000, Slow: 1, Drop: 0.4}, 17), "1 of 1000 nodes is slow: node-00559, 39 % below the median", []string{"node-00559"}, everywhere[:1]},
	"long-names":  {longNames(sample(simulate.Scenario{Nodes: 8, Slow: 1, Drop: 0.4}, 1)), "1 of 8 nodes is slow: " + longName("node-00002") + ", 40 % below the median", []string{longName("node-00002")}, everywhere[:1]},
	"many-faults": {simulated(10), "1 of 10 nodes is slow: node-00003, 41 % below the median", []string{"node-00003"}, everywhere[:1]},
}

var everywhere = []string{"light", "dark", "print"}

func longName(name string) string { return "ip-10-0-12-17-" + name + ".eu-central-1.compute.internal" }

func longNames(r Run) Run {
	leaf := map[string]string{}
	for i, name := range r.Graph.Nodes {
		r.Graph.Nodes[i] = longName(name)
		leaf[longName(name)] = r.Leaf[name]
	}
	for i := range r.Verdict.Slow {
		r.Verdict.Slow[i].Node = longName(r.Verdict.Slow[i].Node)
	}
	for i, name := range r.Verdict.Healthy {
		r.Verdict.Healthy[i] = longName(name)
	}
	r.Leaf = leaf
	return r
}

// layout is what layout.js reads from the page. Boxes are in CSS pixels from the top left of the page.
type layout struct {
	Headline string
	Facts    string
	Width    float64
	// Heads is the largest height, or four times the width, of the heads of columns.
	Heads     float64
	Cut       []string
	Overlaps  []string
	Steps     []box
	Rows      []rowLayout
	Texts     []box
	Resources int
}

type box struct {
	Text       string
	X, Y, W, H float64
}

type rowLayout struct {
	Name string
	// Cells are the squares of the matrix that were tested, Dots the centres of dots, and Value the node's own square.
	Cells, Dots []box
	Value       *box
}

//go:embed testdata/layout.js
var layoutJS string

func TestTheBrowserShowsEverySample(t *testing.T) {
	ctx := browser(t)
	for name, s := range samples {
		path := filepath.Join(t.TempDir(), name+".html")
		write(t, path, s.run)
		for _, mode := range s.modes {
			t.Run(name+"/"+mode, func(t *testing.T) {
				l, shot := open(t, ctx, path, mode, wide)
				if *shots != "" {
					save(t, filepath.Join(*shots, name+"-"+mode+".png"), shot)
				}
				if !strings.HasPrefix(l.Headline, s.headline) {
					t.Errorf("head %q, want %q", l.Headline, s.headline)
				}
				for _, want := range []string{"team-a/llama-70b", "22 November 2026, 13:05 UTC", "Nodes", "Rounds", "GiB/s"} {
					if !strings.Contains(l.Facts, want) {
						t.Errorf("no %q in %q", want, l.Facts)
					}
				}
				if len(l.Cut) > 0 || len(l.Overlaps) > 0 || l.Width > wide || l.Resources > 0 {
					t.Errorf("cut: %q, overlap: %q, page is %v wide, %d resources", l.Cut, l.Overlaps, l.Width, l.Resources)
				}
				if l.Heads > 180 {
					t.Errorf("the heads of columns are %v pixels high, or a quarter of it wide", l.Heads)
				}
				checkColours(t, l, shot, s.bad)
				checkContrast(t, l, shot)
				corner := luminance(shot.At(2, 2))
				if (mode == "dark") != (corner < 0.1) {
					t.Errorf("the corner's luminance is %.2f", corner)
				}
			})
		}
	}
}

// checkColours compares pixels of squares and dots with pixels of the scale.
func checkColours(t *testing.T, l layout, shot image.Image, bad []string) {
	t.Helper()
	if len(l.Steps) != len(steps) {
		t.Fatalf("the scale has %d steps", len(l.Steps))
	}
	slowest, neutral := at(shot, l.Steps[0], 0.5), at(shot, l.Steps[4], 0.5)
	if slowest == neutral {
		t.Fatalf("both ends are %v", slowest)
	}
	seen := 0
	for _, r := range l.Rows {
		isBad := slices.Contains(bad, r.Name)
		if r.Value == nil || r.Value.Y+r.Value.H > tall {
			continue
		}
		want := neutral
		if isBad {
			want = slowest
			seen++
			for _, b := range append(r.Cells, r.Dots...) {
				share := 0.08 // beside the number
				if b.Text == "" {
					share = 0.5
				}
				if got := at(shot, b, share); !near(got, slowest) {
					t.Errorf("%s: %q is %v, the end of the scale %v", r.Name, b.Text, got, slowest)
				}
			}
		}
		if got := at(shot, *r.Value, 0.12); !near(got, want) {
			t.Errorf("%s: %s is %v, want %v", r.Name, r.Value.Text, got, want)
		}
	}
	if seen != len(bad) {
		t.Errorf("%d of %q are in the screenshot", seen, bad)
	}
}

// checkContrast compares, for each text, the pixel of its background with the one that is most different from it.
func checkContrast(t *testing.T, l layout, shot image.Image) {
	t.Helper()
	checked := 0
	for _, b := range l.Texts {
		if b.Y+b.H > tall {
			continue
		}
		counts := map[color.RGBA]int{}
		for y := int(b.Y * dense); y < int((b.Y+b.H)*dense); y++ {
			for x := int(b.X * dense); x < int((b.X+b.W)*dense); x++ {
				counts[color.RGBAModel.Convert(shot.At(x, y)).(color.RGBA)]++
			}
		}
		var background color.RGBA
		for c, n := range counts {
			if n > counts[background] {
				background = c
			}
		}
		best := 0.0
		for c := range counts {
			best = max(best, contrast(c, background))
		}
		if best < minContrast {
			t.Errorf("%q has a contrast of %.2f", b.Text, best)
		}
		checked++
	}
	if checked < 10 {
		t.Errorf("only %d texts", checked)
	}
}

func at(shot image.Image, b box, share float64) color.RGBA {
	return color.RGBAModel.Convert(shot.At(int((b.X+b.W*share)*dense), int((b.Y+b.H/2)*dense))).(color.RGBA)
}

// near reports whether two colours differ by rounding only.
func near(a, b color.RGBA) bool {
	differs := func(x, y uint8) bool { return max(x, y)-min(x, y) > 2 }
	return !differs(a.R, b.R) && !differs(a.G, b.G) && !differs(a.B, b.B)
}

// luminance and contrast are those of WCAG 2.1.
func luminance(c color.Color) float64 {
	r, g, b, _ := c.RGBA()
	linear := func(v uint32) float64 {
		s := float64(v) / 0xffff
		if s <= 0.04045 {
			return s / 12.92
		}
		return math.Pow((s+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(r) + 0.7152*linear(g) + 0.0722*linear(b)
}

func contrast(a, b color.Color) float64 {
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// browser starts Chromium. Where the tests run as root it must be there, as in CI.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	switch {
	case path != "":
	case os.Geteuid() == 0 || os.Getenv("CI") != "":
		t.Fatal("no Chromium: run make chromium")
	default:
		t.Skip("no Chromium: install the package chromium-headless-shell to see the pages tested")
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open shows a page as on a light or a dark screen or on paper.
func open(t *testing.T, ctx context.Context, path, mode string, width int64) (layout, image.Image) {
	t.Helper()
	media, scheme := "screen", mode
	if mode == "print" {
		media, scheme = "print", "dark" // also of a reader with a dark screen
	}
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, tall, chromedp.EmulateScale(dense)),
		chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
			_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Media: media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
			return err
		}),
		chromedp.Navigate("file://"+path))
	if err != nil {
		t.Fatal(err)
	}
	l, err := chromedp.Run(ctx, chromedp.Evaluate[layout](layoutJS))
	if err != nil {
		t.Fatal(err)
	}
	data, err := chromedp.Run(ctx, func(ctx context.Context, tab *chromedp.Target) ([]byte, error) {
		r, err := cdp.Call(ctx, tab, page.CaptureScreenshot, page.CaptureScreenshotParams{
			OptimizeForSpeed: new(true)})
		return r.Data, err
	})
	if err != nil {
		t.Fatal(err)
	}
	shot, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return l, shot
}

func save(t *testing.T, path string, shot image.Image) {
	t.Helper()
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, shot); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func unquoted(t *testing.T, v *accessibility.Value) string {
	t.Helper()
	var text string
	if err := json.Unmarshal(v.Value, &text); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestThePictureOfTheDocs draws the picture of docs/preflight.md with -update.
func TestThePictureOfTheDocs(t *testing.T) {
	const maxBytes = 150_000
	path := filepath.Join("..", "..", "..", "docs", "images", "preflight-heatmap.png")
	if *update {
		html := filepath.Join(t.TempDir(), "page.html")
		write(t, html, samples["slow-12"].run)
		_, shot := open(t, browser(t), html, "light", 1000)
		counts := map[color.Color]int{}
		bottom := 0
		for y := range shot.Bounds().Dy() {
			for x := range shot.Bounds().Dx() {
				c := shot.At(x, y)
				counts[c]++
				if c != shot.At(0, 0) {
					bottom = y
				}
			}
		}
		palette := color.Palette(slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] }))
		small := image.NewPaletted(image.Rect(0, 0, shot.Bounds().Dx(), bottom+20*dense), palette[:min(len(palette), 128)])
		draw.Draw(small, small.Bounds(), shot, image.Point{}, draw.Src)
		save(t, path, small)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil || config.Width != 1000*dense || len(data) > maxBytes {
		t.Errorf("%d pixels wide, %d bytes, %v", config.Width, len(data), err)
	}
}

func write(t *testing.T, path string, r Run) {
	t.Helper()
	var text strings.Builder
	if err := HTML(&text, r); err != nil {
		t.Fatal(err)
	}
	if text.Len() > 2<<20 {
		t.Errorf("%s has %d bytes", path, text.Len())
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheVerdictIsAHeadingAndPaperHasPages(t *testing.T) {
	ctx := browser(t)
	s := samples["sparse-64"]
	path := filepath.Join(t.TempDir(), "page.html")
	write(t, path, s.run)
	if err := chromedp.Do(ctx, chromedp.Navigate("file://"+path)); err != nil {
		t.Fatal(err)
	}
	tree, err := chromedp.Run(ctx, func(ctx context.Context, tab *chromedp.Target) ([]*accessibility.Node, error) {
		r, err := cdp.Call(ctx, tab, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		return r.Nodes, err
	})
	if err != nil {
		t.Fatal(err)
	}
	pdf, err := chromedp.Run(ctx, func(ctx context.Context, tab *chromedp.Target) ([]byte, error) {
		r, err := cdp.Call(ctx, tab, page.PrintToPDF, page.PrintToPDFParams{PrintBackground: new(true), PreferCSSPageSize: new(true)})
		return r.Data, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[string]string{
		"heading": s.headline,
		"image":   "node-00052 58.8 · node-00060 59.0 · node-00055 59.1 · node-00002 60.8 · node-00017 61.0",
	} {
		if !slices.ContainsFunc(tree, func(n *accessibility.Node) bool {
			return n.Role != nil && n.Name != nil && unquoted(t, n.Role) == role && unquoted(t, n.Name) == want
		}) {
			t.Errorf("a screen reader finds no %s %q", role, want)
		}
	}
	if n := bytes.Count(pdf, []byte("/Type /Page\n")); n < 2 || n > 6 {
		t.Errorf("%d pages of paper", n)
	}
	if *shots != "" {
		if err := os.WriteFile(filepath.Join(*shots, "sparse-64.pdf"), pdf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
