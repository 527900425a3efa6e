{{- $entries := slice -}}
{{- range site.Pages }}
  {{- if not .File }}{{ continue }}{{ end }}
  {{- $page := . }}
  {{- $title := partial "title.html" . }}
  {{- range $i, $part := split (printf "\n%s" .RawContent) "\n## " }}
    {{- $lines := split $part "\n" }}
    {{- $heading := "" }}{{ $link := strings.TrimPrefix "/" $page.RelPermalink }}
    {{- if $i }}{{ $heading = replace (index $lines 0) "`" "" }}{{ $link = printf "%s#%s" $link (anchorize $heading) }}{{ end }}
    {{- $text := replaceRE `\]\([^)]*\)` "" (replaceRE "<!--.*?-->|[\\x60|*\\[]+|-{3,}" "" (delimit (after (cond (gt $i 0) 1 2) $lines) " ")) }}
    {{- $entries = $entries | append (dict "p" $title "h" $heading "u" $link "t" (replaceRE `\s+` " " $text)) }}
  {{- end }}
{{- end -}}
window.pitcrewSearch({{ $entries | jsonify }})
