package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/docs/runbooks"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// pagesOf are the pages of the conditions whose messages begin with a subject.
var pagesOf = map[string][]string{
	"gpu": {
		conditions.GPUXidError, conditions.GPUMemoryError, conditions.GPUCountMismatch, conditions.GPUOverheated, conditions.NVLinkDown,
	},
	"driver": {conditions.GPUCountMismatch}, "NVML": {conditions.GPUCountMismatch},
	"nvidia": {conditions.GPUXidError}, "nvswitch": {conditions.GPUXidError}, "nvlink": {conditions.NVLinkDown},
	"npu": {conditions.AscendNPUUnhealthy}, "npu-smi": {conditions.AscendNPUUnhealthy}, "mx-smi": {conditions.MetaXGPUUnhealthy},
	"hca": {conditions.HCAPortDown}, "efa": {conditions.HCAPortDown}, "ibv_devinfo": {conditions.HCAPortDown},
	"mount": {conditions.MountReadOnly, conditions.NodeIOHung},
	"clock": {conditions.ClockSkewed}, "kernel": {conditions.ClockSkewed, conditions.GPUXidError},
	"unit": {conditions.NodeServiceDown}, "pod": {conditions.WorkloadGPUError},
	"Health": {conditions.NodeValidationFailed}, "Cluster": {conditions.NodeValidationFailed}, "diag": {conditions.DCGMDiagFailed},
	"module": {conditions.FabricDegraded}, "iommu": {conditions.FabricDegraded}, "link": {conditions.FabricDegraded},
	"service": {conditions.NodeIOHung}, "shim": {conditions.ContainersBroken},
	"state": {"PitcrewCheckUnknown"}, "unknown": {"PitcrewCheckUnknown"},
}

// unknown begins the line of a check that cannot tell.
const unknown = "unknown: "

// message explains a message of a condition or words of one: its class, then of each of its parts the passage of the runbooks that has
// the longest run of its words, else what the page of its subject says of the class. It returns "" if there is neither.
func message(text string) string {
	var found []string
	class, rest, _ := strings.Cut(text, " ")
	_, err := conditions.ParseRepair(class)
	if err == nil {
		about, _ := topic(class)
		found, text = append(found, about), rest
	}
	known, all := len(found), ofRunbooks()
	for part := range strings.SplitSeq(strings.TrimPrefix(text, unknown), "; ") {
		subject, words, hasSubject := strings.Cut(part, ": ")
		kind, _, _ := strings.Cut(subject, " ")
		if !hasSubject || pagesOf[kind] == nil {
			kind, words = "", part
		}
		p := passage(all, wordsOf(words))
		if p == "" {
			p = ofSubject(all, kind, class)
		}
		if p != "" && !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	if len(found) == known && strings.HasPrefix(text, unknown) {
		found = append(found, ofSubject(all, "unknown", ""))
	}
	if len(found) == known {
		return ""
	}
	return strings.Join(found, "\n")
}

// ofSubject returns what the pages of a kind of subject say of a class.
func ofSubject(all []aPassage, kind, class string) string {
	found := ""
	for _, name := range pagesOf[kind] {
		for _, p := range all {
			if p.page == name && (strings.HasPrefix(p.text, class+" |") || len(pagesOf[kind]) <= 2 && p.first) {
				found += fmt.Sprintf("%s: %s\nMore: kubectl pitcrew explain %s\n", name, p, name)
			}
		}
	}
	return found
}

// aPassage is a paragraph, a row of a table or an item of a list of a page.
type aPassage struct {
	page, text string
	words      []string
	// first is true for what the page begins with.
	first bool
}

func (p aPassage) String() string {
	return plain(strings.TrimSpace(strings.ReplaceAll(strings.TrimSuffix(p.text, " |"), " | ", "; ")), "docs/runbooks")
}

// ofRunbooks returns the passages of all runbooks.
func ofRunbooks() (all []aPassage) {
	for _, name := range runbooks.Names() {
		page, err := runbooks.Page(name)
		if err != nil {
			panic(err) // it was listed
		}
		for i, text := range passageEnd.Split(page, -1) {
			text = strings.TrimPrefix(strings.TrimSpace(text), "| ")
			all = append(all, aPassage{page: name, text: text, words: wordsOf(text), first: i == 1})
		}
	}
	return all
}

// passage returns the passage of the runbooks with the longest run of the words, which is all of them or three at least; of several the
// shortest.
func passage(all []aPassage, words []string) string {
	const least, enough = 2, 3
	longest, best := 0, aPassage{}
	for _, p := range all {
		if n := run(words, p.words); n > longest || n == longest && n > 0 && len(p.words) < len(best.words) {
			longest, best = n, p
		}
	}
	if longest < least || longest < min(enough, len(words)) {
		return ""
	}
	return fmt.Sprintf("%s\nMore: kubectl pitcrew explain %s\n", best, best.page)
}

var (
	// passageEnd is what ends a passage: an empty line, or the end of a row of a table or of an item of a list.
	passageEnd = regexp.MustCompile(`\n\n+|\n(?:\||- )`)
	word       = regexp.MustCompile(`[\pL_/]+[\pL\d_/-]*`)
)

// wordsOf returns the words of a text without numbers and what has digits: that differs from message to message.
func wordsOf(text string) []string {
	words := word.FindAllString(strings.ToLower(text), -1)
	return slices.DeleteFunc(words, func(w string) bool { return strings.ContainsAny(w, "0123456789") })
}

// run returns the length of the longest run of words that both texts have.
func run(a, b []string) (longest int) {
	for i := range a {
		for j := range b {
			n := 0
			for i+n < len(a) && j+n < len(b) && a[i+n] == b[j+n] {
				n++
			}
			longest = max(longest, n)
		}
	}
	return longest
}
