{{- define "lockstep.pod-security" }}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lockstep.container-security" }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "lockstep.environment" }}
- {name: LOCKSTEP_LOG_FORMAT, value: {{ .Values.logFormat | quote }}}
{{- end }}

{{- define "lockstep.secrets" }}
- secretRef: {name: {{ required "secretName: the Secret whose keys are Lockstep's variables" .Values.secretName | quote }}}
{{- end }}

{{- define "lockstep.mounts" }}
- {name: configuration, mountPath: /var/lib/lockstep/lockstep.toml, subPath: lockstep.toml, readOnly: true}
- {name: state, mountPath: /var/lib/lockstep/.lockstep}
- {name: temporary, mountPath: /tmp}
{{- if .Values.filesSecretName }}
- {name: files, mountPath: /etc/lockstep/files, readOnly: true}
{{- end }}
{{- end }}

{{- define "lockstep.volumes" }}
- {name: configuration, configMap: {name: {{ .Release.Name | quote }}}}
- {name: temporary, emptyDir: {}}
{{- if .Values.filesSecretName }}
- {name: files, secret: {secretName: {{ .Values.filesSecretName | quote }}, defaultMode: 288}}
{{- end }}
{{- end }}
